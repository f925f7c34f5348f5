"""Whether a drafter's file and a target's belong together, by their headers."""

from pathlib import Path

from localdflash.models.shapes.drafter_kind import check_drafter
from localdflash.models.weights import gguf, safetensors


def check_files(target: Path, drafter: Path | None) -> None:
    """Raise ModelError if a header is broken, or the drafter does not fit this target. Reads headers only."""
    gguf.read_header(target)
    if drafter is None:
        return
    if drafter.suffix == ".safetensors":
        safetensors.read_header(drafter)
    check_drafter(target, drafter)
