"""The scripts that measure the CPU engine: what they compute is right, on tiny models."""

import math

import numpy as np
import pytest
import torch

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_kv_cache import KV_FORMATS
from localdflash.backends.cpu.packing import Kind, MatrixShape
from localdflash.lab.scripts import cpu_kernels, cpu_quality

needs_library = pytest.mark.skipif(bool(cpu_library.available()), reason=cpu_library.available())


# Quality


def test_differences_of_two_rows_by_hand() -> None:
    total = cpu_quality.Difference()
    wanted = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])  # 1/4 3/4, 1/2 1/2
    found = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])  # 1/2 1/2, 3/4 1/4
    total.add(wanted, found, [1])
    report = total.report()
    divergence = 0.25 * math.log(0.5) + 0.75 * math.log(1.5) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2.0)
    assert report["kl_nats"] == pytest.approx(divergence / 2, rel=1e-2)
    assert report["top1_agreement"] == 0.5  # of equals the first counts
    assert (report["perplexity"], report["perplexity_float32"]) == (2.0, pytest.approx(4 / 3, abs=1e-5))
    assert report["mean_abs_logprob_change"] == pytest.approx(math.log(1.5), rel=1e-2)
    assert report["relative_rms_of_logits"] == pytest.approx(math.sqrt(2.0), rel=1e-2)


# Kernels


@needs_library
@pytest.mark.parametrize("kind", list(Kind)[::4])
def test_threads_share_a_stack_of_matrices(kind: Kind) -> None:
    kernels = cpu_library.load().kernels("portable")
    shape = cpu_kernels.StackedShape("embedded", "key", 48, 256, 3)
    product = cpu_kernels.Product(kernels, shape, kind)
    assert (product.copies, product.panels) == (3, 9)
    assert product.bytes == 3 * cpu_kernels.weight_bytes(MatrixShape(kind, 48, 256))
    alone, shared = product.work(5, 1), product.work(5, 2)
    alone(0)
    whole = product.out.copy()
    product.out[...] = np.nan
    shared(0)
    shared(1)
    assert np.isfinite(whole[:5]).all()
    assert whole[:5].any(axis=0).all()
    assert np.array_equal(product.out[:5], whole[:5])
    assert np.isnan(product.out[5:]).all()


@needs_library
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_attention_covers_the_heads_of_all_layers(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "WIDTHS", (1, 3))
    kernels = cpu_library.load().kernels("portable")
    attention = cpu_kernels.TimedAttention(kernels, cpu_kernels.EMBEDDED, 33, kv)
    assert len(attention.caches) == 6 * 2
    attention.work(3, 1)(0)
    rows = attention.out[0][: 3 * attention.group]
    assert np.isfinite(rows).all()
    assert rows.any(axis=1).all()
    assert not attention.out[0][3 * attention.group :].any()
    assert attention.end[:4].tolist() == [34, 34, 35, 35]  # a group of two query heads
