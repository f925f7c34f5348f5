"""Drafters of every kind on the CPU engine: proposals as torch makes them with rounded activations, planned memory."""

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
from localdflash.backends.cpu.packed_file import PackedModel
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.memory.fit import AS_IT_IS
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.gguf import read_header
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import round_inputs
from tests.support.guessing import Eager
from tests.support.proposals import Case
from tests.support.random_drafters import (
    VARIANTS,
    YARN,
    config_of,
    random_weights,
    write_gguf,
    write_speculators,
    write_zlab,
)

pytestmark = needs_library
SETS = [] if cpu_library.available() else cpu_library.load().instruction_sets
NewPool = Callable[..., ThreadPool]


def vocabulary_of(pair: Path) -> int:
    return len(read_header(pair / "target.gguf").require("tokenizer.ggml.tokens", list))


def check(path: Path, pair: Path, config: DFlashConfig, new_team: NewPool) -> None:
    target, dflash = load_decoder(pair / "target.gguf"), load(path)
    round_inputs(dflash)
    reference = DFlashDrafter(dflash, target.embed_tokens.weight, target.lm_head.weight)
    engine = CpuTarget(open_target(pair / "target.gguf"), new_team(), taps=tuple(sorted(set(config.taps))))
    drafter = CpuDFlashDrafter(open_drafter(path), engine)
    right = slots = 0
    apart = []
    for length in range(1, 21):
        row = np.random.default_rng(length).standard_normal((1, 64 * len(config.taps))).astype(np.float32)
        for one in (drafter, reference):
            one.observe([0], row)
        found, wanted = drafter.propose(length, 99), reference.propose(length, 99)
        right += sum(a == b for a, b in zip(found.tokens, wanted.tokens, strict=True))
        slots += len(wanted)
        apart += [abs(a / b - 1) for a, b in zip(found.confidence, wanted.confidence, strict=True)]
    assert right >= 0.9 * slots  # random weights give near ties
    assert np.median(apart) < 0.02


@pytest.mark.parametrize("variant", [*VARIANTS][1::2])
def test_proposes_what_torch_does(variant: str, tiny_pair: Path, tmp_path: Path, new_team: NewPool) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    path = write_gguf(tmp_path / "d.gguf", config, random_weights(config), tiny_pair / "target.gguf")
    check(path, tiny_pair, config, new_team)


def test_biases_and_yarn(tiny_pair: Path, tmp_path: Path, new_team: NewPool) -> None:
    config = config_of("full", vocabulary_of(tiny_pair))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    scaling: dict[str, Any] = YARN | {"rope_type": "yarn", "truncate": False}
    path = write_zlab(tmp_path, config, random_weights(config), rope_scaling=scaling)
    assert load(path).config.decoder.rope_magnitude > 1
    check(path, tiny_pair, config, new_team)


@pytest.mark.parametrize("variant", ["own embedding and head", "DSpark, reduced vocabulary", "DFlash 2"])
def test_its_memory_is_planned(variant: str, tiny_pair: Path, tmp_path: Path, new_team: NewPool) -> None:
    config = config_of(variant, vocabulary_of(tiny_pair))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    write = write_speculators if config.short else write_zlab
    path = write(tmp_path, config, random_weights(config))
    engine = CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(2), taps=(1, 3, 4))
    for bits in (8, 4):
        drafter = CpuDFlashDrafter(open_drafter(path, bits=bits), engine)
        parts = CpuSizes(tiny_pair / "target.gguf", path, 2, bits).parts(engine.context, AS_IT_IS)
        assert (parts[DRAFTER], parts[DRAFTER_KV]) == (drafter.weight_bytes, drafter.cache.nbytes)
        scratch = engine.scratch_bytes + drafter.scratch_bytes + waiting_bytes(config, 64, engine.context)
        assert parts[SCRATCH] == pytest.approx(scratch, rel=0.01)


# Threads and instruction sets


def drafter_of(case: Case, folder: Path, team: ThreadPool) -> CpuDFlashDrafter:
    target = CpuTarget(open_target(case.target), team, taps=(1, 3, 4))
    return CpuDFlashDrafter(open_drafter(case.write(folder / "drafter.gguf")), target)


def drafts_of(case: Case, folder: Path, team: ThreadPool) -> list[Draft]:
    drafter, drafts = drafter_of(case, folder, team), []
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


@pytest.mark.parametrize(("variant", "temperature"), [("DSpark", 0.0), ("DFlash 2", 1.0)])
def test_drafts_change_no_token(
    variant: str, temperature: float, tiny_pair: Path, tmp_path: Path, new_team: NewPool
) -> None:
    case, texts, drafted = Case(variant, tiny_pair / "target.gguf"), [], 0
    drafter = drafter_of(case, tmp_path, new_team())
    for pair in (
        HostPair(CpuTarget(open_target(case.target), new_team())),
        HostPair(drafter.target, [drafter], Eager({1: 1.0, 16: 1.0}, {drafter.name: 0.0})),
    ):
        pair.prefill([3, 14, 15, 92, 65])
        sampler, text = Sampler(SamplingParams(temperature=temperature, seed=5)), list[int]()
        while len(text) < 60:
            step = pair.step(sampler, 60 - len(text))
            text += step.tokens
            drafted += step.drafted
        texts.append(text)
    assert texts[0] == texts[1]
    assert drafted > 200


# Short vocabularies


@pytest.fixture
def target(tiny_pair: Path, new_team: NewPool) -> CpuTarget:
    return CpuTarget(open_target(tiny_pair / "target.gguf"), new_team(), taps=(1, 3, 4))


@pytest.fixture
def packed(tiny_pair: Path) -> PackedModel[DFlashConfig]:
    return open_drafter(tiny_pair / "drafter.gguf")


def features(count: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, 3 * 64)).astype(np.float32)
