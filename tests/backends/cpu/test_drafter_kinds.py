"""DSpark and DFlash 2 on the CPU engine: the text is the target's, the drafts are the same on every instruction set."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.backends.cpu.conftest import needs_library
from tests.support.guessing import Eager
from tests.support.proposals import Case

pytestmark = needs_library
KINDS = (
    "scaled embedding",
    "scaled and capped logits",
    "DSpark",
    "DSpark that judges",
    "DSpark behind the anchor",
    "DSpark, reduced vocabulary",
    "DFlash 2",
    "DFlash 2, scaled and capped logits",
)
SETS = [] if cpu_library.available() else cpu_library.load().instruction_sets


def drafter_of(case: Case, folder: Path, team: ThreadPool) -> CpuDFlashDrafter:
    target = CpuTarget(open_target(case.target), team, taps=(1, 3, 4))
    return CpuDFlashDrafter(open_drafter(case.write(folder / "drafter.gguf")), target)


def drafts_of(case: Case, folder: Path, team: ThreadPool) -> list[Draft]:
    drafter, drafts = drafter_of(case, folder, team), []
    for index in range(12):
        taps = case.taps(index)
        drafter.observe([7] * len(taps), taps)
        drafts.append(drafter.propose(3 + 11 * index, 99))
    return drafts


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whatever_drafts_the_text_is_the_targets(
    variant: str, temperature: float, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]
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


@pytest.mark.parametrize("variant", KINDS)
def test_the_same_drafts_on_every_instruction_set(
    variant: str, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]
) -> None:
    case = Case(variant, tiny_pair / "target.gguf")
    best, *others = (drafts_of(case, tmp_path, new_team(2, name)) for name in SETS)
    assert all(drafts == best for drafts in others)


@pytest.mark.parametrize("variant", KINDS)
def test_however_many_threads(
    variant: str, tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]
) -> None:
    case = Case(variant, tiny_pair / "target.gguf")
    one, *others = (drafts_of(case, tmp_path, new_team(threads)) for threads in (1, 3, 40))
    for drafts in others:
        for found, wanted in zip(drafts, one, strict=True):
            assert found.tokens == wanted.tokens
            assert found.confidence == pytest.approx(wanted.confidence, rel=1e-5)


def test_a_markov_head_that_decides_alone(tiny_pair: Path, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    """No slot is right before the one before it is: all of them are corrected again and again."""
    case = Case("DSpark that judges", tiny_pair / "target.gguf")
    case.weights["markov_head.markov_w1.weight"] *= 64  # still in steps that Q8_0 holds
    case.check(drafter_of(case, tmp_path, new_team()), near=1.0, same=0.98)  # what is added is a hundred times as much
