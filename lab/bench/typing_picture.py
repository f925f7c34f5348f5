"""Draw a typing replay: how long answers took, and the keystrokes saved in each file."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.lab.bench.typing import saved_share
from localdflash.lab.bench.typing_replay import TypingReplay

KINDS = (".png", ".svg")


def check_picture_path(path: Path) -> None:
    """Raise an error if the picture cannot be drawn; called before the replay starts."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"{path}: unsupported picture format (expected {' or '.join(KINDS)})")
    if find_spec("matplotlib") is None:
        raise LocaldflashError("picture: needs the package 'matplotlib'; run `pip install 'localdflash[train]'`")


def draw(replay: TypingReplay, path: Path) -> None:
    """Write a PNG or an SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, max(4, 1 + 0.22 * len(replay.files))), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_times(left, replay)
    _draw_files(right, replay)
    figure.savefig(path, dpi=150, format=path.suffix.lower()[1:])


def _draw_times(axes: Any, replay: TypingReplay) -> None:
    trace = replay.trace
    lines = {
        "request to answer": trace.request_to_answer,
        "request to first line": trace.request_to_text,
        "key to shown": trace.key_to_shown,
    }
    for name, times in lines.items():
        if times:
            axes.ecdf(times, label=f"{name} ({len(times)})")
    axes.set(xscale="log", xlabel="milliseconds", ylabel="share of answers", title="Latency", ylim=(0, 1))
    axes.axhline(0.5, color="0.8", linewidth=0.8, zorder=0)
    axes.axhline(0.95, color="0.8", linewidth=0.8, zorder=0)
    if any(lines.values()):
        axes.legend(loc="lower right", frameon=False)


def _draw_files(axes: Any, replay: TypingReplay) -> None:
    names = list(replay.files)
    axes.barh([_drawable(name) for name in names], [100 * saved_share(typed) for typed in replay.files.values()])
    axes.invert_yaxis()
    axes.set(xlabel="% of keystrokes saved", title="Files", xlim=(None, 100))
    axes.tick_params(axis="y", labelsize=7)


def _drawable(name: str) -> str:
    """Return a name without characters that matplotlib would parse or could not draw."""
    return "".join(char if char.isprintable() else "?" for char in name[-40:]).replace("$", r"\$")
