"""The CPU drafter against the torch one with rounded activations; when features are injected does not matter."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from localdflash.backends.cpu import cpu_drafter as module
from localdflash.backends.cpu.binding import PackedDrafter, open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.draft import EMPTY_DRAFT
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import round_inputs, rounded
from tests.support.tiny_models import SHAPE, write_drafter, write_target

pytestmark = needs_library
ANCHOR = 7


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)


@pytest.fixture
def packed(files: tuple[Path, Path]) -> PackedDrafter:
    return open_drafter(files[1])


@pytest.fixture
def target(files: tuple[Path, Path], new_team: Callable[..., ThreadPool]) -> CpuTarget:
    return CpuTarget(open_target(files[0]), new_team(), taps=(0, 1))


@pytest.fixture
def drafter(packed: PackedDrafter, target: CpuTarget) -> CpuDFlashDrafter:
    return CpuDFlashDrafter(packed, target)


def features(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 2 * SHAPE.hidden_size)).astype(np.float32)


def feed(drafter: CpuDFlashDrafter | DFlashDrafter, taps: NDArray[np.float32], chunk: int) -> None:
    for start in range(0, len(taps), chunk):
        part = taps[start : start + chunk]
        drafter.observe([0] * len(part), part)


class Rounded(DFlash):
    """The head's rows are rounded too; it is no module of the drafter's."""

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        return super().logits(rounded(hidden), head)


def reference_of(files: tuple[Path, Path], bits: int) -> DFlashDrafter:
    """Matrices as they are packed, activations and the head's rows rounded."""
    loaded, target = load(files[1]), load_decoder(files[0])
    model = Rounded(loaded.config)
    state = loaded.state_dict().items()
    model.load_state_dict({name: packed_as(tensor, bits) if tensor.ndim == 2 else tensor for name, tensor in state})
    round_inputs(model)
    return DFlashDrafter(model.eval(), target.embed_tokens.weight, target.lm_head.weight)


def packed_as(weights: Tensor, bits: int) -> Tensor:
    kind = gguf.GGMLQuantizationType.Q4_0 if bits == 4 else gguf.GGMLQuantizationType.Q8_0
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weights.numpy(), kind), kind))


@pytest.mark.parametrize(("from_anchor", "bits"), [(False, 8), (True, 8), (False, 4)])
def test_drafts_what_the_reference_with_rounded_activations_does(
    from_anchor: bool, bits: int, target: CpuTarget, files: tuple[Path, Path]
) -> None:
    packed = open_drafter(files[1], bits=bits)
    config = replace(packed.config, from_anchor=from_anchor)
    drafter, reference = CpuDFlashDrafter(replace(packed, config=config), target), reference_of(files, bits)
    reference.model.config = config
    right, slots, apart = 0, 0, []
    for length in range(1, 61):
        taps = features(1, length)
        for one in (drafter, reference):
            one.observe([0], taps)
        found, wanted = drafter.propose(ANCHOR, drafter.max_draft_tokens), reference.propose(ANCHOR, 99)
        right += sum(a == b for a, b in zip(found.tokens, wanted.tokens, strict=True))
        slots += len(wanted)
        apart += [abs(a - b) for a, b in zip(found.confidence, wanted.confidence, strict=True)]
    assert right >= 0.97 * slots
    assert np.median(apart) < 5e-3


def test_when_features_come_does_not_matter(packed: PackedDrafter, target: CpuTarget) -> None:
    taps, drafts = features(150), []
    for chunk, asks in ((1, False), (7, True), (64, False), (150, False)):
        drafter = CpuDFlashDrafter(packed, target)
        for start in range(0, 150, chunk):
            part = taps[start : start + chunk]
            drafter.observe([0] * len(part), part)
            if asks:
                drafter.propose(ANCHOR, 3)
        drafts.append(drafter.propose(ANCHOR, 7))
    assert all(draft == drafts[0] for draft in drafts)


def test_waiting_features_are_injected_before_they_fill_memory(
    drafter: CpuDFlashDrafter, packed: PackedDrafter, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = CpuDFlashDrafter(packed, target)
    feed(patient, features(100), 10)
    monkeypatch.setattr(module, "WAITING_BYTES", features(25).nbytes)
    feed(drafter, features(100), 10)
    assert drafter._injected >= 60
    assert patient._injected == 0
    assert drafter.propose(ANCHOR, 7) == patient.propose(ANCHOR, 7)


@pytest.mark.parametrize("length", [0, 1, 17, 40])
def test_rolled_back_it_drafts_as_before(drafter: CpuDFlashDrafter, length: int) -> None:
    feed(drafter, features(length), 40)
    wanted = drafter.propose(ANCHOR, 7)
    for injected in (False, True):
        feed(drafter, features(30, 9), 11)
        if injected:
            drafter.propose(ANCHOR, 7)
        drafter.rollback(length)
        assert drafter.length == length
        assert drafter.propose(ANCHOR, 7) == wanted


def test_a_saved_state_goes_on_the_same(drafter: CpuDFlashDrafter, packed: PackedDrafter, target: CpuTarget) -> None:
    feed(drafter, features(45), 20)
    state, wanted = drafter.save(), drafter.propose(ANCHOR, 7)
    other = CpuDFlashDrafter(packed, target)
    feed(other, features(90, 4), 30)
    other.load(state, range(45))
    assert (other.length, other.propose(ANCHOR, 7)) == (45, wanted)


def test_drafts_up_to_the_end_of_the_context(
    packed: PackedDrafter, files: tuple[Path, Path], target: CpuTarget
) -> None:
    short = CpuTarget(open_target(files[0]), target.team, 40, (0, 1))
    drafter = CpuDFlashDrafter(packed, short)
    feed(drafter, features(40), 40)
    whole = drafter.propose(ANCHOR, 7)
    assert len(whole) == drafter.max_draft_tokens == 7
    assert drafter.propose(ANCHOR, 2).tokens == whole.tokens[:2]
    assert drafter.propose(ANCHOR, 0) is EMPTY_DRAFT
    with pytest.raises(LocaldflashError, match="taps are off"):
        drafter.observe([1], None)


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 65},
        {"markov_rank": 8},
        {"markov_rank": 8192},
        {"conv_kernel": 2, "conv_group": 16, "selector_rank": 48, "selector_top_k": 4},
        {"conv_kernel": 2, "conv_group": 8, "selector_rank": 32, "selector_top_k": 4},
    ],
)
def test_what_the_kernels_do_not_know_is_refused(
    packed: PackedDrafter, target: CpuTarget, change: dict[str, float]
) -> None:
    other = replace(packed, config=replace(packed.config, **change))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="the CPU engine does not run drafters with"):
        CpuDFlashDrafter(other, target)


# Windows


@pytest.fixture
def windowed(packed: PackedDrafter) -> PackedDrafter:
    """Every layer sees 16 keys, whatever comes after them."""
    layers = packed.config.decoder.num_hidden_layers
    config = replace(packed.config, window=16, sliding=(True,) * layers, causal=False)
    return replace(packed, config=config)


def test_what_no_block_will_see_is_not_injected(
    windowed: PackedDrafter, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    inject = ThreadPool.inject

    def counted(team: ThreadPool, model: Any, features: NDArray[np.float32], start: int) -> None:
        rows.append(len(features))
        inject(team, model, features, start)

    monkeypatch.setattr(ThreadPool, "inject", counted)
    lean, whole = CpuDFlashDrafter(windowed, target), CpuDFlashDrafter(windowed, target)
    whole._reach = 0
    taps, wanted = features(300), []
    for drafter in (lean, whole):
        rows.clear()
        feed(drafter, taps[:250], 250)
        drafts = [drafter.propose(ANCHOR, 7)]
        assert sum(rows) == (16 + module.SPARE if drafter is lean else 250)
        for at in range(250, 300, 5):
            feed(drafter, taps[at : at + 5], 5)
            drafts.append(drafter.propose(ANCHOR, 7))
        drafter.rollback(284)  # as far as a window back from the end, and on with other text
        feed(drafter, taps[:9], 9)
        drafts.append(drafter.propose(ANCHOR, 7))
        wanted.append(drafts)
    assert wanted[0] == wanted[1]


def test_features_that_no_block_will_see_do_not_wait(windowed: PackedDrafter, target: CpuTarget) -> None:
    """A long prompt takes the memory that was planned, and is not injected on the way."""
    drafter, whole, most = CpuDFlashDrafter(windowed, target), CpuDFlashDrafter(windowed, target), 0
    before = drafter.scratch_bytes
    taps = features(400)
    for begin in range(0, 400, 5):
        feed(drafter, taps[begin : begin + 5], 5)
        most = max(most, drafter.scratch_bytes - before)
    bound = module.waiting_bytes(windowed.config, target.packed.config.hidden_size, 400)
    assert bound / 2 < most <= bound < taps.nbytes
    feed(whole, taps, 400)
    assert drafter.propose(ANCHOR, 7) == whole.propose(ANCHOR, 7)


def test_a_long_way_back_finds_nothing_of_another_text(windowed: PackedDrafter, target: CpuTarget) -> None:
    fresh, used = CpuDFlashDrafter(windowed, target), CpuDFlashDrafter(windowed, target)
    feed(used, features(300, seed=1), 1)
    used.rollback(0)
    drafts = []
    for drafter in (fresh, used):
        feed(drafter, features(200), 200)
        drafter.propose(ANCHOR, 7)
        drafter.rollback(150)  # the rows before were left out
        drafts.append(drafter.propose(ANCHOR, 7))
    assert drafts[0] == drafts[1]
