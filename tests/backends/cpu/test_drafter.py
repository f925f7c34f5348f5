"""The CPU drafter's features: when they are injected does not matter, and what no window sees is left out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.cpu import cpu_drafter as module
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
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.models.memory.fit import UNCHANGED
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH
from localdflash.models.shapes.dflash_config import DFlashConfig
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import round_inputs
from tests.support.proposals import Case
from tests.support.random_drafters import YARN, config_of, random_weights, vocabulary_of, write_speculators, write_zlab
from tests.support.tiny_models import SHAPE, write_drafter, write_target

pytestmark = needs_library
ANCHOR = 7


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)


@pytest.fixture
def packed(files: tuple[Path, Path]) -> PackedModel[DFlashConfig]:
    return open_drafter(files[1])


@pytest.fixture
def target(files: tuple[Path, Path], new_team: Callable[..., ThreadPool]) -> CpuTarget:
    return CpuTarget(open_target(files[0]), new_team(), taps=(0, 1))


@pytest.fixture
def drafter(packed: PackedModel[DFlashConfig], target: CpuTarget) -> CpuDFlashDrafter:
    return CpuDFlashDrafter(packed, target)


def features(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 2 * SHAPE.hidden_size)).astype(np.float32)


def feed(drafter: CpuDFlashDrafter, taps: NDArray[np.float32], chunk: int) -> None:
    for start in range(0, len(taps), chunk):
        part = taps[start : start + chunk]
        drafter.observe([0] * len(part), part)


def test_rolled_back_or_loaded_it_drafts_as_before(drafter: CpuDFlashDrafter) -> None:
    for length in (0, 1, 17, 40):
        drafter.rollback(0)
        feed(drafter, features(length), 20)
        state, wanted = drafter.save(), drafter.propose(ANCHOR, 7)
        feed(drafter, features(6, 8), 6)
        further = drafter.propose(ANCHOR, 7)
        for injected in (False, True):
            feed(drafter, features(30, 9), 11)
            if injected:
                drafter.propose(ANCHOR, 7)
                feed(drafter, features(5, 3), 5)  # these wait
            drafter.rollback(length)
            assert drafter.length == length
            assert drafter.propose(ANCHOR, 7) == wanted
            feed(drafter, features(6, 8), 6)
            assert drafter.propose(ANCHOR, 7) == further
        drafter.rollback(0)
        feed(drafter, features(90, 4), 30)
        drafter.load(state, range(length))
        assert (drafter.length, drafter.propose(ANCHOR, 7)) == (length, wanted)


def test_drafts_up_to_the_end_of_the_context(
    packed: PackedModel[DFlashConfig], files: tuple[Path, Path], target: CpuTarget
) -> None:
    short = CpuTarget(open_target(files[0]), target.pool, 40, (0, 1))
    drafter = CpuDFlashDrafter(packed, short)
    feed(drafter, features(40), 40)
    whole = drafter.propose(ANCHOR, 7)
    assert len(whole) == drafter.max_draft_tokens == 7
    assert drafter.propose(ANCHOR, 2).tokens == whole.tokens[:2]
    assert drafter.propose(ANCHOR, 0) is EMPTY_DRAFT
    with pytest.raises(LocaldflashError, match="taps are off"):
        drafter.observe([1], None)


def test_shapes_that_the_kernels_do_not_run_are_refused(packed: PackedModel[DFlashConfig], target: CpuTarget) -> None:
    changes: tuple[tuple[dict[str, int], str], ...] = (
        ({"block_size": 65}, "65 tokens"),
        ({"markov_rank": 8}, "rank 8 "),
        ({"markov_rank": 8192}, "rank 8192"),
        ({"conv_kernel": 2, "conv_group": 16, "selector_rank": 48, "selector_top_k": 4}, "rank 48"),
        ({"conv_kernel": 2, "conv_group": 8, "selector_rank": 32, "selector_top_k": 4}, "8 channels"),
    )
    for change, named in changes:
        other = replace(packed, config=replace(packed.config, **change))  # type: ignore[arg-type]
        with pytest.raises(ModelError, match=named):
            CpuDFlashDrafter(other, target)


# Windows


def test_features_outside_every_window_are_not_injected(
    packed: PackedModel[DFlashConfig], target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    inject = ThreadPool.inject

    def counted(pool: ThreadPool, model: Any, features: NDArray[np.float32], start: int) -> None:
        rows.append(len(features))
        inject(pool, model, features, start)

    monkeypatch.setattr(ThreadPool, "inject", counted)
    layers = packed.config.decoder.num_hidden_layers
    windowed = replace(packed, config=replace(packed.config, window=16, sliding=(True,) * layers, causal=False))
    lean, whole = CpuDFlashDrafter(windowed, target), CpuDFlashDrafter(windowed, target)
    whole._kept_features = 0
    taps, wanted = features(300), []
    for drafter in (lean, whole):
        rows.clear()
        feed(drafter, taps[:250], 250)
        drafts = [drafter.propose(ANCHOR, 7)]
        assert sum(rows) == (16 + module.SPARE_FEATURES if drafter is lean else 250)
        for at in range(250, 300, 5):
            feed(drafter, taps[at : at + 5], 5)
            drafts.append(drafter.propose(ANCHOR, 7))
        drafter.rollback(284)  # as far as a window back from the end, and on with other text
        feed(drafter, taps[:9], 9)
        drafts.append(drafter.propose(ANCHOR, 7))
        wanted.append(drafts)
    assert wanted[0] == wanted[1]


SETS = [] if cpu_library.why_unavailable() else cpu_library.load().instruction_sets
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


@pytest.mark.parametrize("variant", ["scaled and capped logits", "DSpark with confidence", "DFlash 2"])
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
