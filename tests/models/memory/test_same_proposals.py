"""DFlash, DSpark and DFlash 2 of every configuration: all backends propose the same tokens on the same weights.

Each is held to the specification in float64 (see `proposals`); files are in F32 and in Q8_0, with the same numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.engine.pair import Drafter
from tests.support.proposals import Case
from tests.support.random_drafters import VARIANTS

Make = Callable[[Path, Path, ExitStack], Drafter]


def in_torch(path: Path, target: Path, _stack: ExitStack) -> Drafter:
    decoder = load_decoder(target)
    return DFlashDrafter(load(path), decoder.embed_tokens.weight, decoder.lm_head.weight)


def in_llama_cpp(path: Path, target: Path, stack: ExitStack) -> Drafter:
    llama = LlamaCppTarget(target, threads=1, taps=(1, 3, 4))
    stack.callback(llama.close)
    drafter = LlamaCppDFlashDrafter(path, llama, threads=1)
    stack.callback(drafter.close)
    return drafter


def on_cpu(path: Path, target: Path, stack: ExitStack) -> Drafter:
    if cpu_library.why_unavailable():
        pytest.skip(cpu_library.why_unavailable())
    pool = ThreadPool(2)
    stack.callback(pool.close)
    packed = open_drafter(path)
    return CpuDFlashDrafter(packed, CpuTarget(open_target(target), pool, taps=sorted(set(packed.config.taps))))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close the opened models after a test."""
    with ExitStack() as opened:
        yield opened


# Tolerance of scores for rounding, in standard deviations of a slot's logits. torch rounds nothing. llama.cpp rounds
# inputs of matrices in Q8_0, such as the target's head. The CPU engine rounds inputs of all matrices.
NEAR: dict[tuple[Make, str], float] = {
    (in_torch, "F32"): 1e-4,
    (in_llama_cpp, "Q8_0"): 0.25,
    (on_cpu, "F32"): 0.25,
    (on_cpu, "Q8_0"): 0.25,
}


# llama.cpp has one causality for all layers, and treats these as bidirectional.
FAILS: set[tuple[Make, str]] = {(in_llama_cpp, "sliding in part, causal by default")}


CASES = [(*way, variant) for way in NEAR for variant in (list(VARIANTS)[:3] if way == (on_cpu, "F32") else VARIANTS)]


@pytest.mark.parametrize(("make", "quantization", "variant"), CASES)
def test_the_same_tokens(
    make: Make,
    variant: str,
    quantization: str,
    tiny_pair: Path,
    tmp_path: Path,
    stack: ExitStack,
    request: pytest.FixtureRequest,
) -> None:
    if (make, variant) in FAILS:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True))
    case = Case(variant, tiny_pair / "target.gguf")
    path = case.write(tmp_path / "drafter.gguf", quantization)
    case.check(make(path, case.target, stack), near=NEAR[make, quantization])
