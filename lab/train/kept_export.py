"""A drafter that was trained on kept answers, as files that every backend reads.

The average of the weights is written, the sizes of the taps' channels folded into `fc`. The files say for which target
it was trained and what it reached on held-out answers, and carry its short vocabulary.
"""

import copy
from pathlib import Path

import torch

from localdflash.backends.reference.dflash_model import DFlash
from localdflash.lab.train.kept_training import KeptRun
from localdflash.lab.train.pair_export import our_fields, write_drafter_for, write_drafter_safetensors
from localdflash.models.shapes import short_vocabulary
from localdflash.models.weights.gguf import read_header


def served(run: KeptRun) -> DFlash:
    """The drafter as it serves: it reads taps as they come."""
    drafter = copy.deepcopy(run.average)
    with torch.no_grad():
        drafter.fc.weight.div_(run.sizes)
    return drafter.eval()


def export(run: KeptRun, trained_in: Path, target: Path, into: Path, blocks: int) -> None:
    """Write drafter.gguf (Q8_0), and drafter.safetensors with config.json.

    `blocks` is how many the target has; `trained_in` the run's folder.
    """
    into.mkdir(parents=True, exist_ok=True)
    drafter, header = served(run), read_header(target)
    ids = short_vocabulary.load(trained_in / short_vocabulary.FILE, drafter.config.decoder.vocab_size).tolist()
    name = f"drafter for {target.stem}"
    write_drafter_for(into / "drafter.gguf", drafter, header, "Q8_0", name, ids, run.tau)
    write_drafter_safetensors(into / "drafter.safetensors", drafter, blocks, our_fields(header, ids, run.tau))
