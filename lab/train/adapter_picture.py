"""The picture of an adapter's training: its loss, and how many held-out middles it would write as they are."""

import json
from pathlib import Path
from typing import Any

SMOOTH = 0.05  # share of a step in the line that is drawn


def draw(log: Path, picture: Path) -> None:
    """Draw the rows of `log` over the tokens, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True)
    above.set_ylabel("loss of a middle, nats a token")
    below.set(xlabel="million tokens", ylabel="held-out middles that are right, %")
    tokens, losses = _column(rows, "loss")
    above.plot(tokens, _smooth(losses), label="training", lw=0.8, alpha=0.6)
    for name in sorted({name for row in rows for name in row if name.startswith(("loss_", "held_out"))}):
        above.plot(*_column(rows, name), label=name.removeprefix("loss_").replace("_", " "), lw=_width(name))
    for name in sorted({name for row in rows for name in row if name.startswith("exact")}):
        tokens, shares = _column(rows, name)
        below.plot(tokens, [100 * share for share in shares], label=name.removeprefix("exact_"), lw=_width(name))
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(picture, dpi=110)


def _width(name: str) -> float:
    return 2.0 if name in ("held_out", "exact") else 0.8


def _column(rows: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    found = [(row["tokens"] / 1e6, row[name]) for row in rows if name in row]
    return [tokens for tokens, _ in found], [value for _, value in found]


def _smooth(values: list[float]) -> list[float]:
    smooth = values[:1]
    for value in values[1:]:
        smooth.append(smooth[-1] + SMOOTH * (value - smooth[-1]))
    return smooth
