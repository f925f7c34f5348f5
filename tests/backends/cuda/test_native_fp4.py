"""The FP4 mode in Triton's interpreter: products of rounded activations, used by the fused kernels."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.native_fp4 import NativeFp4
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.prompt_reader import new_reader
from localdflash.backends.cuda.stack import activations
from localdflash.base.errors import ModelError, UsageError
from localdflash.kernels.cuda.fp4 import Fp4Rows, fp4_matrix, quantize_rows_fp4_reference
from localdflash.models.load_options import Options
from tests.support.cuda_pairs import CPU, answer, load_on_cpu
from tests.support.interpreter import install_dot_scaled
from tests.support.tiny_models import SHAPE, write_target

install_dot_scaled()

PROMPT = [7, 8, 9, 10, 11, 7, 8, 9, 10]


def test_fused_kernel_uses_the_fp4_product(tmp_path: Path) -> None:
    pair = load_on_cpu(write_target(tmp_path / "t.gguf", SHAPE, "MXFP4"), None, KERNELS, context=256)
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


def test_a_target_with_any_fp4_product_has_no_prompt_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.prompt_reader.BLOCK_TOKENS", (64, 32, 16))
    stepper = load_on_cpu(write_target(tmp_path / "t.gguf", SHAPE, "MXFP4"), None, context=256).stepper
    assert stepper.reader
    native = NativeFp4().convert(stepper.target)
    layers = [replace(own, mlp=layer.mlp) for own, layer in zip(native.layers, stepper.target.layers, strict=True)]
    mixed = replace(native, layers=tuple(layers))
    assert new_reader(stepper.stack, mixed, stepper.cache, None, torch.float32) is None


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_fp4_mode_is_lossless(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t.gguf", SHAPE, "MXFP4")
    pair = load_on_cpu(target, None, KERNELS, context=256, native_fp4=True)
    plain = answer(pair.with_mode("plain"), PROMPT, 4)
    pair.set_documents([[*PROMPT, *plain[:2], 3]])
    assert answer(pair.with_mode("lookup"), PROMPT, 4) == plain


def test_targets_without_fp4_weights_and_other_chips_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"--native-fp4: needs a target with MXFP4 or NVFP4"):
        load_on_cpu(write_target(tmp_path / "t.gguf", SHAPE), None, KERNELS, context=256, native_fp4=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    with pytest.raises(UsageError, match="needs a Blackwell RTX GPU"):
        load_pair(tmp_path / "t.gguf", None, torch.device("cuda"), Options(native_fp4=True))
