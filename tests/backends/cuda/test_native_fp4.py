"""The FP4 mode in Triton's interpreter: products of rounded activations, taken over by the fused kernels."""

from pathlib import Path

import pytest
import torch

from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.native_fp4 import NativeFp4
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.stack import activations
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.generate import Request, generate
from localdflash.kernels.cuda.fp4 import Fp4Rows, fp4_matrix, quantize_rows_fp4_reference
from tests.support import dot_scaled
from tests.support.tiny_models import SHAPE, write_target

dot_scaled.install()

CPU = torch.device("cpu")
PROMPT = [7, 8, 9, 10, 11, 7, 8, 9, 10]


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)
    )


def test_a_fused_kernel_takes_the_product_over(tmp_path: Path) -> None:
    pair = load_pair(write_target(tmp_path / "t.gguf", SHAPE, "MXFP4"), None, CPU, CudaSettings(context=256), KERNELS)
    planes = pair.stepper.target.layers[0].output
    native = NativeFp4()
    target, ops = native.convert(pair.stepper.target), native.ops()
    torch.manual_seed(0)
    (a, sums), (out, out_sums) = activations(128, CPU, torch.float16), activations(128, CPU, torch.float16)
    a.copy_(torch.randn(16, 128))
    x, gain, squares = torch.randn(16, 128), torch.rand(128) + 0.5, torch.zeros(1, 16)
    matrix = fp4_matrix(planes)
    rows = Fp4Rows.empty(matrix)
    quantize_rows_fp4_reference(a, rows)
    expected = x.double() + rows.dense[:, :128].double() @ planes.dense.double().T
    ops.residual(a, sums, target.layers[0].output, x, gain, None, out, out_sums, squares, pair.stepper.shared.workspace)
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), expected * gain.double(), rtol=2e-3, atol=2e-3)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_drafts_change_nothing_in_this_mode_either(tmp_path: Path) -> None:
    settings = CudaSettings(context=256, native_fp4=True)
    pair = load_pair(write_target(tmp_path / "t.gguf", SHAPE, "MXFP4"), None, CPU, settings, KERNELS)
    texts = []
    for way in ("plain", "lookup"):
        chosen = pair.only("plain" if way == "plain" else "lookup")
        chosen.forget()
        texts.append([token for step in generate(chosen, Request(PROMPT, 4)) for token in step.tokens])
        pair.set_documents([[*PROMPT, *texts[0][:2], 3]])
    assert texts[0] == texts[1]


def test_a_target_without_fp4_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="needs a target with MXFP4 or NVFP4 weights: leave out --native-fp4"):
        load_pair(
            write_target(tmp_path / "t.gguf", SHAPE), None, CPU, CudaSettings(context=256, native_fp4=True), KERNELS
        )


def test_other_chips_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    with pytest.raises(UsageError, match="needs a Blackwell RTX GPU"):
        load_pair(tmp_path / "t.gguf", None, torch.device("cuda"), CudaSettings(native_fp4=True))
