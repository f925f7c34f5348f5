"""GPU memory while pairs are loaded and closed, on a fake card that counts this process's tensors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest
import torch

from localdflash.backends.cuda import assembly, cuda_sizes
from localdflash.backends.cuda.cuda_sizes import CudaSizes
from localdflash.backends.cuda.load_cuda import load
from localdflash.backends.cuda.stepper import Stepper
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import format_bytes, total
from localdflash.models.registry.pair_entry import LocalPair
from tests.support.cards import Card, in_this_machine
from tests.support.tiny_models import SHAPE, write_drafter, write_target

TRAINED = 16_384
MARGIN = 60_000_000
LARGE = 2_000_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    """Write a pair whose KV cache is most of its memory."""
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
    """Return a function that installs a card of a size."""
    with ExitStack() as stack:

        def make(size: int, margin: int = MARGIN) -> Card:
            card = Card(size)
            stack.enter_context(in_this_machine(card, margin))
            return card

        yield make


def sizes_of(files: LocalPair) -> CudaSizes:
    return CudaSizes(files.target, files.drafter_safetensors)


def needed(files: LocalPair, context: int) -> int:
    """Return the bytes of the pair with its unchanged drafter."""
    return total(sizes_of(files).parts(context, "8 bits"))


# Plans


def test_memory_taken_by_others_shortens_the_context(
    files: LocalPair, machine: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes take memory right after free memory is first measured, and an allocation fails."""
    planned = total(sizes_of(files).parts(TRAINED, "none"))
    card, made = machine(planned + 3_000_000, margin=3_000_000), Stepper
    info = card.info

    def then_taken() -> tuple[int, int]:
        seen = info()
        card.taken = 6_000_000
        return seen

    def made_if_it_fits(*arguments: Any) -> Stepper:
        stepper = made(*arguments)
        card.check()
        return stepper

    monkeypatch.setattr(card, "info", then_taken)
    monkeypatch.setattr(assembly, "Stepper", made_if_it_fits)
    running = load(files, Options(context=TRAINED, draft=False))
    assert 4096 <= running.context < TRAINED
    (notice,) = filter(None, running.notices)
    for number in (format_bytes(planned), f"{running.context} tokens", f"{TRAINED} tokens"):
        assert number in notice
    running.close()


# Pairs that were closed


def test_pairs_come_and_go_without_leaving_anything(files: LocalPair, machine: Callable[..., Card]) -> None:
    card = machine(LARGE)
    contexts = set[int]()
    for tries in range(1, 4):
        running = load(files, Options())
        assert card.queries == tries, "free memory is measured once for a plan"
        contexts.add(running.context)
        assert card.allocated() > 10_000_000
        running.close()  # which holders of the record may keep
        assert card.left() == card.size
    assert len(contexts) == 1


# Less than was planned

STAGES = [("Stepper", 12_000), ("measure", 0)]
SAID = {"measure": "CUDA error: out of memory"}


def fail(stage: str, failures: int, card: Card, patch: pytest.MonkeyPatch) -> list[int]:
    """Let a stage run out of memory `failures` times; return the list of bytes allocated before each call."""
    original, seen = getattr(assembly, stage), list[int]()

    def once(*arguments: Any, **options: Any) -> Any:
        seen.append(card.allocated())
        made = original(*arguments, **options)
        if len(seen) <= failures:
            raise RuntimeError(SAID[stage]) if stage in SAID else torch.OutOfMemoryError("CUDA out of memory")
        return made

    patch.setattr(assembly, stage, once)
    return seen


@pytest.mark.parametrize(("stage", "context"), STAGES)
def test_out_of_memory_loads_the_next_smaller_plan(
    stage: str, context: int, files: LocalPair, machine: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = machine(needed(files, 16_000) + MARGIN)
    seen = fail(stage, 1, card, monkeypatch)
    running = load(files, Options(context=context))
    (notice,) = filter(None, running.notices)
    assert len(seen) == 2
    assert max(seen) <= seen[0], "what the failure had taken was not given back"
    assert f"loaded with {running.context} tokens of context" in notice
    assert total(running.predicted_memory) < needed(files, context or 14_000)
    running.close()
    assert card.left() == card.size


# Desktops


def unknown(*_: object) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("name", "function", "shown"),
    [
        ("nvmlDeviceGetDisplayActive", lambda _handle: 1, True),
        ("nvmlDeviceGetDisplayActive", lambda _handle: 0, False),
        ("nvmlInit", unknown, False),
    ],
    ids=["a desktop", "none", "no library"],
)
def test_desktop_is_detected(name: str, function: Any, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", {"GPU-1234": 7}.__getitem__)
    monkeypatch.setattr(pynvml, name, function)
    assert cuda_sizes.has_display(torch.device("cuda", 0)) is shown
