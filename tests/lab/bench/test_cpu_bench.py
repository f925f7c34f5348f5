"""The scripts that measure the CPU engine: what they compute is right, on tiny models."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_kv_cache import KV_FORMATS
from localdflash.backends.cpu.packing import Kind, MatrixShape
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.lab.scripts import cpu_kernels, cpu_quality, synthetic
from localdflash.models.weights.ggml_types import GGMLType

needs_library = pytest.mark.skipif(bool(cpu_library.available()), reason=cpu_library.available())
IDS = [3, 1, 4, 1, 5, 9, 2, 6] * 9  # more than one forward


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quality") / "target.gguf"
    synthetic.write_target(path, replace(synthetic.TINY, tie_word_embeddings=True), "tiny", GGMLType.Q8_0)
    return path


# Quality


def test_a_float32_target_does_not_differ(target: Path) -> None:
    found = cpu_quality.compare(TorchTarget(load_decoder(target)), cpu_quality.Reference(target, [IDS]), [IDS])
    assert found["positions"] == len(IDS)
    assert found["top1_agreement"] == 1.0
    assert found["kl_nats"] < 1e-9
    assert found["relative_rms_of_logits"] < 1e-4
    assert found["perplexity_over_float32"] == pytest.approx(1.0, abs=1e-4)


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


@pytest.mark.nightly
@needs_library
def test_the_engines_are_measured_on_a_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quality, "RANDOM_TOKENS", 40)
    config = replace(synthetic.TINY, num_hidden_layers=2)
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "home"))
    found = cpu_quality.of_shape(config, "tiny", "Q4_K_M", tmp_path, 1, lambda _line: None)
    for engine in ("cpu", "llama.cpp"):
        assert found[engine]["positions"] == 40
        assert 0 < found[engine]["relative_rms_of_logits"] < 0.05
    assert not list(tmp_path.glob("*.gguf"))


# Kernels


@needs_library
@pytest.mark.parametrize("kind", Kind)
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


@pytest.mark.nightly
@needs_library
def test_a_table_of_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "ROUNDS", 1)
    monkeypatch.setattr(cpu_kernels, "SHORTEST", 0.0)
    monkeypatch.setattr(cpu_kernels, "CONTEXTS", (16,))
    monkeypatch.setattr(cpu_kernels, "bandwidth", lambda threads: 10.0 * threads)
    small = replace(cpu_kernels.EMBEDDED, vocab_size=64, num_hidden_layers=1, hidden_size=256, intermediate_size=256)
    monkeypatch.setattr(cpu_kernels, "MODELS", {"embedded": small})
    said: list[str] = []
    result = cpu_kernels.run(1, ["portable"], ["embedded"], said.append)
    measured = result["instruction_sets"]["portable"]
    assert result["bandwidth_gb_s"] == 10.0
    assert measured["peak_gmac_s"] > 0
    assert [row["kind"] for row in measured["products"][:4]] == ["Q8_0", "Q4_0", "Q4_K", "Q6_K"]
    assert {row["matrix"] for row in measured["products"]} == {"query", "key", "gate", "down", "head"}
    for row in measured["products"]:
        cell = row["rows"][2]
        assert cell["gmac_s"] == pytest.approx(2 * row["n"] * row["k"] / cell["us"] / 1e3, rel=0.05, abs=0.1)
        assert cell["over_one_row"] == pytest.approx(cell["us"] / row["rows"][1]["us"], rel=0.05)
    assert [(row["context"], row["kv"]) for row in measured["attention"]] == [(16, "f16"), (16, "int8")]
    assert len(said) == 1 + 5 * len(Kind) + 2
