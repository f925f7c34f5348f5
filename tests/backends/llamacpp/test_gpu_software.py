"""llama.cpp on a software GPU (Mesa): the same results as on the processor, up to float16 rounding.

`make test-gpu-software` builds the device and runs these tests. Steps have 8 rows, so that few shaders are compiled.
"""

import os
from contextlib import closing
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.classes import LlamaDecoder, find_classes
from localdflash.backends.llamacpp.decode_flags import ON_GPU, DecodeMode
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_library import devices, find_gpu
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.placement import ALL_LAYERS, PROCESSOR, Device, Placement
from localdflash.base.errors import NoDevice
from localdflash.engine.draft import Draft
from localdflash.lab.scripts.peers.gpu_software import environment, installed
from localdflash.lab.scripts.row_identity import compare_rows
from tests.support.random_models import EMBEDDED, Shape, quantize, write

pytestmark = [
    pytest.mark.gpu_software,
    pytest.mark.skipif("LOCALDFLASH_GPU_SOFTWARE" not in os.environ, reason="`make test-gpu-software` runs it"),
]
WAY = DecodeMode(ON_GPU[0], (8,))
PROMPT = [5, 9, 101, 77, 300, 12, 45, 8]
DRAFT = [20, 31, 44]
Seen = tuple[NDArray[np.float32], Draft, bytes]
SMALL = Shape("Q8_0", 64, 2, 2, 1, 64, 2048, head_dim=32)
MIXTURE = Shape("Q8_0", 64, 3, 2, 1, 64, 1024, head_dim=32, experts=4, used=2)


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    assert installed(), "run `make gpu-software`"
    os.environ.update(environment())  # before llama.cpp is loaded


@pytest.fixture(scope="module")
def gpu() -> Device:
    (found,) = devices()
    return found


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mixture") / "model.gguf", MIXTURE)


def opened(path: Path, placement: Placement) -> "closing[LlamaCppTarget]":
    return closing(LlamaCppTarget(path, 512, 1, (), WAY, placement))


def beside(target: LlamaCppTarget) -> LlamaCppDFlashDrafter:
    return LlamaCppDFlashDrafter(EMBEDDED.with_name("drafter.gguf"), target, 1)


def logits(path: Path, placement: Placement) -> NDArray[np.float32]:
    with opened(path, placement) as target:
        target.extend(PROMPT)
        return target.verify(7, Draft("test", DRAFT, [1.0] * 3)).logits.copy()


def check_close(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Assert that numbers agree up to rounding of activations to float16 or 8 bits."""
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()


def test_the_device_has_a_name_and_memory(gpu: Device) -> None:
    assert (gpu.name, "llvmpipe" in gpu.description) == ("Vulkan0", True)
    assert 0 < gpu.free <= gpu.size
    assert find_gpu("gpu") == find_gpu("Vulkan0") == gpu
    with pytest.raises(NoDevice, match=r"--device Vulkan1: llama.cpp has no such GPU .*Vulkan0"):
        find_gpu("Vulkan1")


@pytest.mark.parametrize("layers", [ALL_LAYERS, 3])
def test_gpu_logits_match_the_processor(gpu: Device, layers: int) -> None:
    check_close(logits(EMBEDDED, Placement(gpu, layers)), logits(EMBEDDED, PROCESSOR))


def test_experts_of_some_layers_on_the_processor(gpu: Device, mixture: Path) -> None:
    expected = logits(mixture, PROCESSOR)
    for experts in (range(0), range(2)):
        check_close(logits(mixture, Placement(gpu, ALL_LAYERS, experts)), expected)


def taps_draft_and_state(placement: Placement) -> Seen:
    with opened(EMBEDDED, placement) as target, closing(beside(target)) as drafter:
        target.set_taps(drafter.config.taps)
        taps = target.extend(PROMPT)
        assert taps is not None
        drafter.observe(PROMPT, taps.copy())
        return taps.copy(), drafter.propose(7, 7), drafter.save()


def test_taps_and_a_drafter_that_shares_embedding_and_head(gpu: Device) -> None:
    drafted = [taps_draft_and_state(placement) for placement in (Placement(gpu, ALL_LAYERS), PROCESSOR)]
    check_close(drafted[0][0], drafted[1][0])
    on_gpu, on_processor = drafted[0][1], drafted[1][1]
    np.testing.assert_allclose(on_gpu.confidence, on_processor.confidence, atol=0.05)
    confident = [i for i, one in enumerate(on_processor.confidence) if one > 0.6]  # a near tie may go either way
    assert [on_gpu.tokens[i] for i in confident] == [on_processor.tokens[i] for i in confident]
    assert len(drafted[0][2]) == len(drafted[1][2])


def test_bit_exact_widths_are_found(gpu: Device, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", SMALL)
    model = llama_library.load_model(path, placement=Placement(gpu, ALL_LAYERS))
    try:
        with closing(LlamaDecoder(model, ON_GPU[0], 1)) as decoder:
            (found,) = find_classes(decoder, (2,), (2, 4, 8, 16))
    finally:
        api.llama_model_free(model)
    assert found.widths == (2, 4, 8)  # ggml-vulkan has other shaders for up to 8 rows


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_K_M", "Q4_1"])
def test_drafted_rows_match_single_token_decoding(gpu: Device, quantization: str, tmp_path: Path) -> None:
    path = quantize(EMBEDDED, tmp_path / "model.gguf", quantization)
    mode = DecodeMode(ON_GPU[0], (8,), borders=True)
    with closing(LlamaCppTarget(path, 512, 1, (), mode, Placement(gpu, ALL_LAYERS))) as target:
        assert compare_rows(target, PROMPT, 6, 3) == (0, 13, {1, 2, 3, 4})
