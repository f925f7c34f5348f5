"""A drafter that was trained on kept answers, as files that every backend reads.

The average of the weights is written, the sizes of the taps' channels folded into `fc`. The short vocabulary lies
beside it.
"""

import copy
import shutil
from pathlib import Path

import torch

from localdflash.model import short_vocabulary
from localdflash.reference.dflash_model import DFlash
from localdflash.train.export import write_drafter_for, write_drafter_safetensors
from localdflash.train.kept_training import KeptRun
from localdflash.weights.gguf import read_header


def served(run: KeptRun) -> DFlash:
    """The drafter as it serves: it reads taps as they come."""
    drafter = copy.deepcopy(run.average)
    with torch.no_grad():
        drafter.fc.weight.div_(run.sizes)
    return drafter.eval()


def export(run: KeptRun, trained_in: Path, target: Path, into: Path, blocks: int) -> None:
    """Write drafter.gguf (Q8_0), drafter.safetensors with config.json, and the short vocabulary.

    `blocks` is how many the target has; `trained_in` the run's folder.
    """
    into.mkdir(parents=True, exist_ok=True)
    drafter = served(run)
    write_drafter_for(into / "drafter.gguf", drafter, read_header(target), "Q8_0", f"drafter for {target.stem}")
    write_drafter_safetensors(into / "drafter.safetensors", drafter, blocks)
    shutil.copyfile(trained_in / short_vocabulary.FILE, into / short_vocabulary.FILE)
