"""Helpers of every phase: the options of the run, the results file, errors of a measurement."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops


class BenchReport:
    """Results file, JSON with a part for each phase; every change of the part of `phase` rewrites the file."""

    def __init__(self, path: Path, phase: str) -> None:
        self.path, self._phase = path, phase
        self.document: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}

    def put(self, **values: Any) -> None:
        """Set values of this phase, and save."""
        self.document.setdefault("phases", {}).setdefault(self._phase, {}).update(values)
        self.save()

    def start(self, **values: Any) -> None:
        """Replace the results of an earlier run of this phase by these values, and save."""
        self.document.setdefault("phases", {})[self._phase] = {}
        self.put(**values)

    def phase(self, name: str) -> dict[str, Any]:
        """Return the results of a phase, empty if it never ran."""
        found: dict[str, Any] = self.document.get("phases", {}).get(name, {})
        return found

    def save(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".part")
        unfinished.write_text(json.dumps(self.document, indent=1) + "\n")
        unfinished.replace(self.path)


@dataclass(frozen=True)
class Setup:
    """Options of a run; `tiny`: small shapes, to test the scripts on a CPU in seconds."""

    device: torch.device
    tiny: bool
    folder: Path  # folder of large files, which the next run uses again
    llama_source: Path | None  # see `gpu_run --llama-source`

    @property
    def ops(self) -> Ops:
        """Return the kernels; on a CPU their references."""
        return KERNELS if self.device.type == "cuda" else REFERENCES


def guarded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement, or its error; a CUDA error is raised, since no later call would work."""
    try:
        return measure()
    except Exception as error:
        if "CUDA error" in str(error):
            raise
        return {"error": f"{type(error).__name__}: {error}"[:500]}
