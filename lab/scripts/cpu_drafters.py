"""Cost of a draft on this CPU by kind of drafter: random DFlash, DSpark and DFlash 2 of the published shapes.

`PYTHONPATH=. python -P lab/scripts/cpu_drafters.py [--threads 2] [--shape 0.6B] [--seconds 20] [--json FILE]`. The
fastest of interleaved repeats counts; a draft follows a step of four tokens. DFlash has as many slots as the kind that
it is compared with. `settled` is a Markov head that changes next to nothing, `unsettled` one that decides alone.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.cpu.packed_file import PackedModel
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.hardware import bandwidth
from localdflash.lab import result_file
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.cpu_shapes import CACHED, CONTEXT, draft_ms
from localdflash.lab.scripts.synthetic import SHAPES
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.ggml_types import GGMLType

ALONE = 1000  # times the bias, so that the logits count for nothing


def drafters_of(folder: Path, shape: str, target: CpuTarget) -> dict[str, CpuDFlashDrafter]:
    """One of each kind, in Q8_0."""
    published, packed = synthetic.published_drafter(SHAPES[shape], 0), dict[str, PackedModel[DFlashConfig]]()
    for name, fields in synthetic.KINDS.items():
        path, config = folder / f"{name}.gguf", replace(published, **fields)
        synthetic.write_drafter(path, config, GGMLType.Q8_0, f"random {name} of {shape}")
        packed[name] = open_drafter(path)
    plain, spark, second = packed["dflash"], packed["dspark"], packed["dflash2"]
    made = {
        "DFlash, as many slots as DSpark": replace(plain, config=replace(plain.config, block_size=7, from_anchor=True)),
        "DSpark, settled": spark,
        "DSpark, unsettled": _unsettled(spark),
        "DFlash, as many slots as DFlash 2": replace(plain, config=replace(plain.config, block_size=8)),
        "DFlash 2": second,
    }
    return {name: CpuDFlashDrafter(one, target) for name, one in made.items()}


def _unsettled(packed: PackedModel[DFlashConfig]) -> PackedModel[DFlashConfig]:
    before = packed.parts["markov_w1"]
    louder = replace(before, scales=before.scales * np.float16(ALONE))
    return replace(packed, parts={**packed.parts, "markov_w1": louder})


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="0.6B")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALDFLASH_HOME"] = home  # packed weights go with it
        folder, config = Path(home), SHAPES[given.shape]
        synthetic.write_target(folder / "target.gguf", replace(config, num_hidden_layers=2), "random", GGMLType.Q8_0)
        team = ThreadPool(given.threads, physical_cores())
        target = CpuTarget(open_target(folder / "target.gguf"), team, CONTEXT)
        drafters = drafters_of(folder, given.shape, target)
        shape = (CACHED, len(synthetic.TAPS[config]) * config.hidden_size)
        taps = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for drafter in drafters.values():
            drafter.observe([1] * CACHED, taps)
        best, began = dict.fromkeys(drafters, float("inf")), time.perf_counter()
        while time.perf_counter() - began < given.seconds:
            for name, drafter in drafters.items():
                best[name] = min(best[name], draft_ms(drafter, taps))
        team.close()
    result: dict[str, Any] = {
        "threads": given.threads,
        "bandwidth_gb_s": round(bandwidth(), 1),
        "ms": {name: round(ms, 3) for name, ms in best.items()},
    }
    print(json.dumps(result, indent=2))
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
