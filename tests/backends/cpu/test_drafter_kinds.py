"""Drafters on the CPU engine: planned memory, and drafts that no processor and no thread count changes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter, waiting_bytes
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.engine.draft import Draft
from localdflash.models.memory.fit import UNCHANGED
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import round_inputs
from tests.support.proposals import Case
from tests.support.random_drafters import (
    YARN,
    config_of,
    random_weights,
    vocabulary_of,
    write_speculators,
    write_zlab,
)

pytestmark = needs_library
SETS = [] if cpu_library.available() else cpu_library.load().instruction_sets
NewPool = Callable[..., ThreadPool]


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path, new_team: NewPool) -> None:
    config = config_of("full", vocabulary_of(tiny_pair / "target.gguf"))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    scaling: dict[str, Any] = YARN | {"rope_type": "yarn", "truncate": False}
    path = write_zlab(tmp_path, config, random_weights(config), rope_scaling=scaling)
    target, dflash = load_decoder(tiny_pair / "target.gguf"), load(path)
    assert dflash.config.decoder.rope_magnitude > 1
    round_inputs(dflash)
    reference = DFlashDrafter(dflash, target.embed_tokens.weight, target.lm_head.weight)
    engine = CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(), taps=config.taps)
    drafter, same, apart = CpuDFlashDrafter(open_drafter(path), engine), list[bool](), list[float]()
    for length in range(1, 21):
        row = np.random.default_rng(length).standard_normal((1, 64 * len(config.taps))).astype(np.float32)
        for one in (drafter, reference):
            one.observe([0], row)
        found, wanted = drafter.propose(length, 99), reference.propose(length, 99)
        same += [a == b for a, b in zip(found.tokens, wanted.tokens, strict=True)]
        apart += [abs(a / b - 1) for a, b in zip(found.confidence, wanted.confidence, strict=True)]
    assert np.mean(same) >= 0.9  # random weights give near ties
    assert np.median(apart) < 0.02


@pytest.mark.parametrize("variant", ["own embedding and head", "DSpark, reduced vocabulary", "DFlash 2"])
def test_its_memory_is_planned(variant: str, tiny_pair: Path, tmp_path: Path, new_team: NewPool) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair / "target.gguf"))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    write = write_speculators if config.short else write_zlab
    path = write(tmp_path, config, random_weights(config))
    engine = CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(2), taps=(1, 3, 4))
    for bits in (8, 4):
        drafter = CpuDFlashDrafter(open_drafter(path, bits=bits), engine)
        parts = CpuSizes(tiny_pair / "target.gguf", path, 2, bits).parts(engine.context, UNCHANGED)
        assert (parts[DRAFTER], parts[DRAFTER_KV]) == (drafter.weight_bytes, drafter.cache.nbytes)
        scratch = engine.scratch_bytes + drafter.scratch_bytes + waiting_bytes(config, 64, engine.context)
        assert parts[SCRATCH] == pytest.approx(scratch, rel=0.01)


# Threads and instruction sets


def drafter_of(case: Case, folder: Path, pool: ThreadPool) -> CpuDFlashDrafter:
    target = CpuTarget(open_target(case.target), pool, taps=(1, 3, 4))
    return CpuDFlashDrafter(open_drafter(case.write(folder / "drafter.gguf")), target)


def drafts_of(case: Case, folder: Path, pool: ThreadPool) -> list[Draft]:
    drafter, drafts = drafter_of(case, folder, pool), []
    for index in range(8):
        taps = case.taps(index)
        drafter.observe([7] * len(taps), taps)
        drafts.append(drafter.propose(3 + 11 * index, 99))
    return drafts


@pytest.mark.parametrize("variant", ["scaled and capped logits", "DSpark that judges", "DFlash 2"])
def test_drafts_do_not_depend_on_the_processor(
    variant: str, tiny_pair: Path, tmp_path: Path, new_team: NewPool
) -> None:
    """Drafts are equal on every instruction set; with other numbers of threads confidence differs in its last bits."""
    case = Case(variant, tiny_pair / "target.gguf")
    best, *others = (drafts_of(case, tmp_path, new_team(2, name)) for name in SETS)
    assert all(drafts == best for drafts in others)
    for threads in (1, 3, 40):
        for found, wanted in zip(drafts_of(case, tmp_path, new_team(threads)), best, strict=True):
            assert found.tokens == wanted.tokens
            assert found.confidence == pytest.approx(wanted.confidence, rel=1e-5)
