"""Memory of a GPU while pairs come and go: a card that counts this process's tensors stands in for one."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import assembly, room
from localdflash.backends.cuda.cuda_sizes import RESERVE, CudaSizes
from localdflash.backends.cuda.device import give_back
from localdflash.backends.cuda.load_cuda import load
from localdflash.backends.cuda.runner import Runner
from localdflash.backends.cuda.stepper import Stepper
from localdflash.base.errors import ModelError, NoDevice, OutOfMemory
from localdflash.loading import automatic
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import COMFORTABLE, Fit, MemoryBudget
from localdflash.models.memory.parts import SCRATCH, Parts, gigabytes, total
from localdflash.models.registry.pair_entry import LocalPair
from tests.support.cards import Card, in_this_machine
from tests.support.tiny_models import SHAPE, write_drafter, write_target

TRAINED = 16_384
MARGIN = 60_000_000
LARGE = 2_000_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    """A pair whose context is most of it."""
    folder = tmp_path_factory.mktemp("tiny")
    shape = replace(SHAPE, context_length=TRAINED)
    target = write_target(folder / "target.gguf", shape)
    made: Any = SimpleNamespace(
        target=target, drafter_safetensors=write_drafter(folder, shape), drafter_gguf=None, id="tiny"
    )
    pair: LocalPair = made
    return pair


@pytest.fixture
def machine() -> Iterator[Callable[..., Card]]:
    """Makes a card of so many bytes, which is then this machine's."""
    with ExitStack() as stack:

        def make(size: int, margin: int = MARGIN) -> Card:
            card = Card(size)
            stack.enter_context(in_this_machine(card, margin))
            return card

        yield make


def sizes_of(files: LocalPair) -> CudaSizes:
    return CudaSizes(files.target, files.drafter_safetensors)


def needed(files: LocalPair, context: int) -> int:
    """Bytes of the pair with its whole drafter."""
    return total(sizes_of(files).parts(context, "8 bits"))


# Plans


def test_free_memory_is_measured_once_for_a_plan(files: LocalPair, machine: Callable[..., Card]) -> None:
    card = machine(LARGE)
    load(files, Options()).close()
    assert card.looks == 1


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch) -> Callable[[Card, int], None]:
    """Lets others take so many bytes right after the first look at what is free; memory that is not there fails."""

    def take(card: Card, taken: int) -> None:
        info, made = card.info, Stepper

        def then_taken() -> tuple[int, int]:
            seen = info()
            card.taken = taken
            return seen

        def made_if_it_fits(*arguments: Any) -> Stepper:
            stepper = made(*arguments)
            card.check()
            return stepper

        monkeypatch.setattr(card, "info", then_taken)
        monkeypatch.setattr(assembly, "Stepper", made_if_it_fits)

    return take


def test_one_that_takes_more_than_was_left_shortens_the_context(
    files: LocalPair, machine: Callable[..., Card], desktop: Callable[[Card, int], None]
) -> None:
    planned = total(sizes_of(files).parts(TRAINED, "none"))
    card = machine(planned + 3_000_000, margin=3_000_000)
    desktop(card, 6_000_000)
    running = load(files, Options(context=TRAINED, draft=False))
    assert 4096 <= running.context < TRAINED
    assert [line for line in running.notices if line] == [
        f"the GPU ran out of memory where {gigabytes(planned)} were planned for {TRAINED} tokens of context: loaded"
        f" with {running.context} tokens of context instead of {TRAINED} tokens"
    ]
    running.close()


def test_a_context_that_nobody_asked_for_does_not_fill_the_card(files: LocalPair, machine: Callable[..., Card]) -> None:
    size = needed(files, 12_000) + MARGIN
    machine(size)
    running = load(files, Options())
    assert COMFORTABLE <= running.context < 12_000
    assert total(running.predicted) + MARGIN + size // room.SPARE <= size
    assert f"the context has {running.context} of {TRAINED} tokens" in running.notices[0]
    running.close()
    asked = load(files, Options(context=11_900))
    assert asked.context == 11_900
    asked.close()


class Straight:
    """A byte for a token."""

    trained, drafters = 8192, ("none",)

    def parts(self, context: int, drafter: str) -> Parts:
        return {SCRATCH: context}


# Pairs that were closed


def test_pairs_come_and_go_without_leaving_anything(files: LocalPair, machine: Callable[..., Card]) -> None:
    card = machine(LARGE)
    free, contexts = set[int](), set[int]()
    for _ in range(4):
        running = load(files, Options())
        contexts.add(running.context)
        assert card.allocated() > 10_000_000
        running.close()  # which whoever holds the record need not let go of
        free.add(card.left())
    assert free == {card.size}
    assert len(contexts) == 1


def test_what_torch_keeps_of_others_counts_as_free(machine: Callable[..., Card]) -> None:
    card = machine(LARGE)
    gone = torch.zeros(100_000_000, dtype=torch.uint8)
    assert card.reserved() >= gone.nbytes
    del gone
    assert card.left() <= LARGE - 100_000_000
    assert room.budget_of(torch.device("cpu")).free == LARGE


# Less than was planned

STAGES = [("load_drafter", 0), ("Stepper", 12_000), ("measure", 0), ("prepare", 12_000)]
SAID = {"measure": "CUDA error: out of memory", "prepare": "Triton Error [CUDA]: out of memory"}


def fail(stage: str, times: int, card: Card, patch: pytest.MonkeyPatch) -> list[int]:
    """Let a stage run out of memory so often; the list gets what was allocated before each of its calls."""
    owner: Any = Runner if stage == "prepare" else assembly
    original, seen = getattr(owner, stage), list[int]()

    def once(*arguments: Any, **options: Any) -> Any:
        seen.append(card.allocated())
        made = original(*arguments, **options)
        if len(seen) <= times:
            raise RuntimeError(SAID[stage]) if stage in SAID else torch.OutOfMemoryError("CUDA out of memory")
        return made

    patch.setattr(owner, stage, once)
    return seen


@pytest.mark.parametrize(("stage", "context"), STAGES)
def test_where_it_runs_out_of_memory_the_next_smaller_plan_is_loaded(
    stage: str, context: int, files: LocalPair, machine: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = machine(needed(files, 16_000) + MARGIN)
    seen = fail(stage, 1, card, monkeypatch)
    running = load(files, Options(context=context))
    said = [line for line in running.notices if line]
    assert len(said) == 1
    assert len(seen) == (1 if stage == "load_drafter" and "no drafter" in said[0] else 2)
    assert max(seen) <= seen[0], "what the failure had taken was not given back"
    assert "the GPU ran out of memory" in said[0]
    assert f"loaded with {running.context} tokens of context" in said[0]
    assert total(running.predicted) < needed(files, context or 14_000)
    running.close()
    assert card.left() == card.size


def test_a_context_that_was_asked_for_is_kept_and_the_drafter_shrinks(files: LocalPair) -> None:
    sizes = sizes_of(files)
    planned = Fit("8 bits", 1024, sizes.parts(1024, "8 bits"))
    there = MemoryBudget(total(planned.parts) + MARGIN, MARGIN, "GPU memory")
    after = room.smaller(sizes, planned, 1024, there, 1)
    assert (after.context, after.drafter) == (1024, "none")
    assert room.told(after, planned, "full") == (
        "full: loaded with 1024 tokens of context and no drafter instead of 1024 tokens"
    )


@pytest.mark.parametrize(("times", "context"), [(1, 7680), (3, 6144)])
def test_plans_shrink_by_more_the_more_often_they_fail(times: int, context: int) -> None:
    planned = Fit("none", 8192, {SCRATCH: 8192})
    assert (
        room.smaller(Straight(), planned, 0, MemoryBudget(20_000, 0, "GPU memory", spare=2500), times).context
        == context
    )
    assert room.smaller(Straight(), planned, 0, MemoryBudget(5000, 0, "GPU memory"), times).context == 4864


def test_a_gpu_that_is_always_full_is_tried_a_few_times(
    files: LocalPair, machine: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = machine(LARGE)
    seen = fail("Stepper", 99, card, monkeypatch)
    with pytest.raises(OutOfMemory):
        load(files, Options())
    assert 2 <= len(seen) <= room.TRIES
    give_back()
    assert card.left() == card.size


def test_what_a_failed_load_leaves_is_given_to_the_next_backend(
    files: LocalPair, machine: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    card, left = machine(LARGE), list[int]()

    def broken(*_arguments: Any) -> Any:
        raise ModelError("a tensor is missing")

    def load_on(backend: str, given: LocalPair, options: Options) -> Any:
        if backend == "cuda":
            return load(given, options)
        left.append(card.left())
        raise NoDevice("none")

    monkeypatch.setattr(assembly, "load_drafter", broken)
    monkeypatch.setattr(automatic, "load_on", load_on)
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: True)
    with pytest.raises(NoDevice, match="not the CUDA engine: a tensor is missing; none"):
        automatic.load_best(files, Options(device="gpu"))
    assert left == [card.size]


# Desktops


class Library:
    """NVML with one GPU."""

    def __init__(self, active: int, failing: str = "") -> None:
        self._active, self._failing = active, failing

    def __getattr__(self, name: str) -> Any:
        if name == self._failing:
            return lambda *_: 3
        return {
            "nvmlInit_v2": lambda: 0,
            "nvmlDeviceGetHandleByUUID": lambda uuid, _handle: 0 if uuid == b"GPU-1234" else 6,
            "nvmlDeviceGetDisplayActive": self._is_active,
        }[name]

    def _is_active(self, _handle: Any, active: Any) -> int:
        active._obj.value = self._active
        return 0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts a library, or an error, in the place of NVML."""

    def put(library: Any) -> None:
        def open_(_name: str) -> Any:
            if isinstance(library, Exception):
                raise library
            return library

        monkeypatch.setattr(ctypes, "CDLL", open_)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1234"))

    return put


@pytest.mark.parametrize(
    ("library", "shown"),
    [
        (Library(1), True),
        (Library(0), False),
        (Library(1, "nvmlDeviceGetDisplayActive"), False),
        (OSError("no such file"), False),
    ],
    ids=["a desktop", "none", "not told", "no library"],
)
def test_a_desktop_is_seen(library: Any, shown: bool, nvml: Callable[[Any], None]) -> None:
    nvml(library)
    assert room.is_shown_on(torch.device("cuda", 0)) is shown


def test_a_desktop_gets_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (8 << 30, 8 << 30))
    margins = []
    for shown in (True, False):
        monkeypatch.setattr(room, "is_shown_on", lambda _device, shown=shown: shown)
        margins.append(room.budget_of(torch.device("cuda", 0)).margin)
    assert margins == [RESERVE + (512 << 20), RESERVE + (128 << 20)]
