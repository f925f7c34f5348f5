"""Pictures of a training log: loss, a drafter's tokens per verify step, an adapter's exact middles."""

import json
from pathlib import Path
from typing import Any

from localdflash.lab.train.resumable_run import SMOOTHING


def draw_loss(log: Path, picture: Path) -> None:
    """Draw the loss over the steps of `log`, as a PNG."""
    figure, rows = _begin(log, 4)
    axes = figure.add_subplot(xlabel="step", ylabel="loss, nats per token")
    axes.plot(*_column(rows, "loss"))
    _finish(figure, picture)


def draw_drafter_training(log: Path, picture: Path) -> None:
    """Draw loss, tau in training and tau on held-out prompts over the steps of `log`, as a PNG."""
    figure, rows = _begin(log, 6)
    above, below = figure.subplots(2, sharex=True)
    above.set_ylabel("loss, nats per token")
    below.set(xlabel="step", ylabel="tokens per verify step")
    above.plot(*_column(rows, "loss"))
    below.plot(*_column(rows, "tau"), label="training, drafts from any token")
    kinds = sorted({name for row in rows for name in row if name.startswith("held_out_")})
    for name in ("held_out", *kinds):
        label = name.replace("held_out", "held out").replace("_", ", ")
        below.plot(*_column(rows, name), label=label, lw=_width(name), alpha=1.0 if name == "held_out" else 0.6)
    _finish(figure, picture)


def draw_adapter_training(log: Path, picture: Path) -> None:
    """Draw the rows of `log` over the tokens, as a PNG."""
    figure, rows = _begin(log, 6)
    above, below = figure.subplots(2, sharex=True)
    above.set_ylabel("loss of a middle, nats per token")
    below.set(xlabel="million tokens", ylabel="exact held-out middles, %")
    tokens, losses = _column(rows, "loss", "tokens", 1e6)
    above.plot(tokens, _smooth(losses), label="training", lw=0.8, alpha=0.6)
    for name in sorted({name for row in rows for name in row if name.startswith(("loss_", "held_out"))}):
        label = name.removeprefix("loss_").replace("_", " ")
        above.plot(*_column(rows, name, "tokens", 1e6), label=label, lw=_width(name))
    for name in sorted({name for row in rows for name in row if name.startswith("exact")}):
        tokens, shares = _column(rows, name, "tokens", 1e6)
        below.plot(tokens, [100 * share for share in shares], label=name.removeprefix("exact_"), lw=_width(name))
    _finish(figure, picture)


def _begin(log: Path, height: int) -> tuple[Any, list[dict[str, Any]]]:
    """Return an empty figure and the rows of a log."""
    from matplotlib.figure import Figure

    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return Figure(figsize=(7, height), layout="constrained"), rows


def _finish(figure: Any, picture: Path) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    figure.savefig(picture, dpi=110)


def _width(name: str) -> float:
    return 2.0 if name in ("held_out", "exact") else 0.8


def _column(
    rows: list[dict[str, Any]], name: str, x_name: str = "step", unit: float = 1
) -> tuple[list[float], list[float]]:
    points = [(row[x_name] / unit, row[name]) for row in rows if name in row]
    return [x for x, _ in points], [value for _, value in points]


def _smooth(values: list[float]) -> list[float]:
    smooth = values[:1]
    for value in values[1:]:
        smooth.append(smooth[-1] + SMOOTHING * (value - smooth[-1]))
    return smooth
