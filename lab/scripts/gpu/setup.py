"""Device, operations, folder and results file of every phase."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops


class BenchReport:
    """One JSON object on disk, a part of it for each phase; replaced as a whole after every change."""

    def __init__(self, path: Path, phase: str) -> None:
        self.path, self._phase = path, phase
        self.whole: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def put(self, **values: Any) -> None:
        """Set values of this phase, and save."""
        self.whole.setdefault("phases", {}).setdefault(self._phase, {}).update(values)
        self.save()

    def start(self, **values: Any) -> None:
        """Forget what an earlier run of this phase has left."""
        self.whole.setdefault("phases", {})[self._phase] = {}
        self.put(**values)

    def phase(self, name: str) -> dict[str, Any]:
        """Return the results of a phase, empty if it never ran."""
        found: dict[str, Any] = self.whole.get("phases", {}).get(name, {})
        return found

    def save(self) -> None:
        """Write the file; whoever is killed leaves the one before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.whole, indent=1) + "\n")
        unfinished.replace(self.path)


@dataclass(frozen=True)
class Setup:
    """One run. `tiny`: shapes that a CPU gets through in seconds, to try the scripts."""

    device: torch.device
    tiny: bool
    folder: Path  # of files too large for the source tree, used again by the next run
    llama_source: Path | None

    @property
    def ops(self) -> Ops:
        """The kernels; their references on a CPU."""
        return KERNELS if self.device.type == "cuda" else REFERENCES


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured, or the error; a CUDA error ends the phase, since nothing works after it."""
    try:
        return measure()
    except Exception as error:
        if "CUDA error" in str(error):
            raise
        return {"error": f"{type(error).__name__}: {error}"[:500]}
