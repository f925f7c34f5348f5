"""Draw a chat benchmark: acceptance by category and slot (position in the draft), and speed by context length."""

from pathlib import Path
from typing import Any

import numpy as np


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the result of `chat_run.run` as a PNG or an SVG, by the suffix of `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_slots(left, {name: row["accept_by_slot"] for name, row in result["categories"].items()})
    _draw_context(right, result.get("context") or [])
    figure.savefig(path, dpi=150, format=path.suffix.lower()[1:])


def _draw_slots(axes: Any, accepted: dict[str, list[float]]) -> None:
    """Draw the acceptance by category and slot; slots that were never drafted stay empty."""
    slots = max(map(len, accepted.values()), default=0) or 1
    shares = np.full((max(len(accepted), 1), slots), np.nan)
    for row, category_shares in enumerate(accepted.values()):
        shares[row, : len(category_shares)] = category_shares
    axes.imshow(shares, vmin=0, vmax=1, aspect="auto", cmap="viridis")
    for (row, slot), share in np.ndenumerate(shares):
        if not np.isnan(share):
            axes.text(slot, row, f"{share:.2f}", ha="center", va="center", color="w" if share < 0.6 else "k")
    axes.set(title="Drafted tokens that were committed", xlabel="slot", xticks=range(slots))
    axes.set_xticklabels(range(1, slots + 1))
    axes.set_yticks(range(len(accepted)), labels=list(accepted))


def _draw_context(axes: Any, points: list[dict[str, Any]]) -> None:
    """Draw the tokens per second of each mode over the context, and next to it the tokens per verify step."""
    contexts = [point["context"] for point in points]
    for mode in points[0]["tok_s"] if points else ():
        axes.plot(contexts, [point["tok_s"][mode] for point in points], marker="o", label=f"{mode}, tokens/s")
    axes.set(title="As the context grows", xlabel="tokens of context", ylabel="tokens per second", ylim=(0, None))
    if not points:
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, labels=contexts)
    tau_axes = axes.twinx()
    for mode in points[0]["tau"]:
        taus = [point["tau"][mode] for point in points]
        tau_axes.plot(contexts, taus, marker="x", linestyle=":", label=f"{mode}, tokens per verify step")
    tau_axes.set(ylabel="tokens per verify step", ylim=(1, None))
    lines = [*axes.get_legend_handles_labels()[0], *tau_axes.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8)
