"""What a pair is on this machine: which backend, whether it can fit, and how fast at most."""

from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.base.errors import NoDevice
from localdflash.base.machine.measurements import Measurement
from localdflash.loading.plan.expected_speed import bytes_per_token
from localdflash.loading.plan.here import here, why_not
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import load_registry
from localdflash.models.weights.gguf import read_header

MEASURED = Measurement(20.0, "made up", "2026-11-24")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 GB of memory, no GPU, both engines; 20 GB/s, and 200 of a GPU's."""
    monkeypatch.setattr("localdflash.loading.plan.here.all_memory", lambda: 32 * 10**9)
    monkeypatch.setattr("localdflash.loading.plan.here.device.driver_present", lambda: False)
    monkeypatch.setattr("localdflash.loading.plan.here.gpu_is_there", lambda: False)
    monkeypatch.setattr("localdflash.loading.plan.here.cpu_library.available", lambda: "")
    monkeypatch.setattr(
        "localdflash.loading.plan.here.measurements.bandwidth",
        lambda on_gpu=False: replace(MEASURED, value=200.0) if on_gpu else MEASURED,
    )


def entry(pair_id: str = "qwen3-8b") -> PairEntry:
    return load_registry().pair(pair_id)


def test_our_engine_where_it_is_else_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert here(entry()).backend == "cpu"
    monkeypatch.setattr("localdflash.loading.plan.here.cpu_library.available", lambda: "no compiler")
    assert here(entry()).backend == "llama.cpp"
    assert here(replace(entry(), backends=("cpu",))).backend is None


def test_why_a_pair_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(entry()) == ""
    assert why_not(replace(entry(), backends=())) == "no backend runs it yet"
    assert why_not(replace(entry(), backends=("cuda",))) == "only cuda can run it, which this machine has not"
    assert why_not(replace(entry(), memory_gb=40.0)) == "needs 40.00 GB, this machine has 32.00 GB"


def test_a_gpu_of_llama_cpp_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.loading.plan.here.gpu_is_there", lambda: True)
    assert here(entry()).backend == "llama.cpp"


@pytest.mark.parametrize(("free", "backend", "speed"), [(12e9, "cuda", 200), (9e9, "cpu", 20)])
def test_a_gpu_of_ours_where_the_pair_fits(
    free: float, backend: str, speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.loading.plan.here.device.driver_present", lambda: True)
    monkeypatch.setattr("localdflash.loading.plan.here.gpu_budget", lambda: MemoryBudget(int(free), 0, "GPU memory"))
    seen = here(entry())
    assert (seen.backend, seen.bandwidth) == (backend, replace(MEASURED, value=float(speed)))


def test_a_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> MemoryBudget:
        raise NoDevice("no GPU")

    monkeypatch.setattr("localdflash.loading.plan.here.device.driver_present", lambda: True)
    monkeypatch.setattr("localdflash.loading.plan.here.gpu_budget", none)
    assert here(entry()).backend == "cpu"


def test_the_speed_is_bandwidth_over_what_a_token_reads() -> None:
    dense, sparse = here(entry("qwen3-8b")), here(entry("qwen3-coder-30b-a3b"))
    assert dense.tokens_per_second == pytest.approx(20e9 / (8.2e9 * 4.89 / 8))
    assert sparse.tokens_per_second == pytest.approx(20e9 / (3.3e9 * 4.89 / 8)), "a mixture reads its active experts"


def test_a_file_that_is_here_is_read_for_it(tiny_pair: Path) -> None:
    path = tiny_pair / "target.gguf"
    pair = replace(entry(), target=replace(entry().target, repository=None, file=str(path)))
    assert here(pair).tokens_per_second == pytest.approx(20e9 / bytes_per_token(read_header(path)))


def test_what_is_too_large_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.loading.plan.here.all_memory", lambda: 8 * 10**9)
    seen = here(entry())
    assert (seen.backend, seen.fits, seen.tokens_per_second) == ("cpu", False, None)
    assert here(entry("qwen3-4b")).fits


def test_what_nothing_runs() -> None:
    seen = here(replace(entry(), backends=()))
    assert (seen.backend, seen.fits, seen.tokens_per_second) == (None, False, None)


def test_what_nothing_has_run_is_said() -> None:
    untried = replace(entry("gemma-4-31b"), ran=())
    assert here(untried).untried
    assert not here(entry("qwen3.5-9b")).untried
    own = replace(untried, origin=Path("/home/me/models.toml"))
    assert not here(own).untried, "of an entry of one's own nobody knows"


def test_what_is_not_known_has_no_speed() -> None:
    assert here(replace(entry(), active=None)).tokens_per_second is None
    odd = replace(entry(), target=replace(entry().target, quantization="IQ2_XXS"))
    assert here(odd).tokens_per_second is None
