"""The picture of a drafter's training: its loss, and how many tokens a verify would commit."""

import json
from pathlib import Path
from typing import Any


def draw(log: Path, picture: Path) -> None:
    """Draw loss, tau in training and tau on held-out prompts over the steps of `log`, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(7, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True)
    above.set_ylabel("loss, nats a token")
    below.set(xlabel="step", ylabel="tokens a verify")
    above.plot(*_column(rows, "loss"))
    below.plot(*_column(rows, "tau"), label="a draft from any token, training")
    kinds = sorted({name for row in rows for name in row if name.startswith("held_out_")})
    for name in ("held_out", *kinds):
        width, alpha = (2.0, 1.0) if name == "held_out" else (0.8, 0.6)
        below.plot(
            *_column(rows, name), label=name.replace("held_out", "held out").replace("_", ", "), lw=width, alpha=alpha
        )
    for axes in (above, below):
        axes.grid(alpha=0.3)
    below.legend(fontsize="small")
    figure.savefig(picture, dpi=110)


def _column(rows: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    found = [(row["step"], row[name]) for row in rows if name in row]
    return [step for step, _ in found], [value for _, value in found]
