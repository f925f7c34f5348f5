"""Recommended pairs: the largest that leaves memory free and is fast enough."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localdflash.base.machine.measurements import Measurement
from localdflash.loading.plan import recommend
from localdflash.models.registry.pair_entry import PairEntry, TargetSource
from localdflash.models.registry.registry import load_registry

GB = 10**9


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to be a computer with 32 GB, 20 GB/s and no GPU."""
    plan = "localdflash.loading.plan"
    for name, value in (
        ("here.all_memory", 32 * GB),
        ("recommend.all_memory", 32 * GB),
        ("here.device.driver_present", False),
        ("here.gpu_is_there", False),
        ("here.cpu_library.why_unavailable", ""),
        ("here.measurements.bandwidth", Measurement(20.0, "copy", "2026-11-27")),
    ):
        monkeypatch.setattr(f"{plan}.{name}", lambda *_, result=value, **__: result)


def entry(name: str, memory_gb: float, active: float, fim: str | None = None) -> PairEntry:
    """Return an entry whose tokens read `active` billion weights of about half a byte."""
    target = TargetSource(None, f"/nowhere/{name}.gguf", quantization="Q4_K_M")
    pair = PairEntry(name, "", target, None, Path("x"), ("cpu",), fim=fim, memory_gb=memory_gb, active=active)
    return replace(pair, ran=("cpu",))


SMALL, DENSE, SPARSE, HUGE = (
    entry("small", 1, 0.1, "qwen"),
    entry("dense", 20, 32),
    entry("sparse", 22, 3, "qwen"),
    entry("huge", 60, 5, "qwen"),
)
PAIRS = (HUGE, SMALL, SPARSE, DENSE)
chat, completion = (partial(recommend.recommend, role) for role in ("chat", "completion"))


def test_a_chat_gets_the_largest_pair_that_fits_and_is_fast_enough() -> None:
    found = chat(PAIRS)
    assert found
    assert (found.pair.id, found.larger) == ("sparse", HUGE)
    assert found.tokens_per_second == pytest.approx(20 / (3 * 4.85 / 8), rel=0.05)
    assert found.against_larger == "needs 60.00 GB, this machine has 32.00 GB"


def test_a_missing_backend_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    only_llama_cpp = replace(SPARSE, backends=("llama.cpp",))
    for missing, command in (("llama_cpp", "pip install 'localdflash[llama]'"), ("", "")):
        monkeypatch.setattr(recommend, "missing_module", lambda extra, missing=missing: missing)
        found = chat([only_llama_cpp])
        assert found
        assert found.install == command


def test_a_larger_pair_that_is_too_slow_is_named_with_its_speed() -> None:
    found = chat([SMALL, DENSE])
    assert found
    assert (found.pair.id, found.larger, found.against_larger) == ("small", DENSE, "only 1.0 tok/s")


def test_completions_get_a_fast_pair_that_can_infill() -> None:
    found = completion(PAIRS)
    assert found
    assert (found.pair.id, found.larger) == ("small", SPARSE)
    assert found.against_larger.startswith("only ")
    assert completion([DENSE]) is None


def test_a_base_model_is_not_recommended_for_a_chat() -> None:
    assert chat([replace(SMALL, chat=False)]) is None


def test_a_fifth_of_the_memory_is_left_for_other_programs() -> None:
    found = chat([SMALL, entry("tight", 27, 3)])
    assert found
    assert (found.pair.id, found.against_larger) == (
        "small",
        "needs 27.00 GB of 32.00 GB; a pair should take at most 80%",
    )


def test_a_pair_that_no_test_ran_is_not_recommended() -> None:
    assert chat([replace(SMALL, ran=())]) is None


@pytest.mark.parametrize(
    ("memory_gb", "bandwidth", "gpu_gb", "expected"),
    [
        (8, 20, 0, "smollm2-135m-code"),
        (8, 40, 0, "qwen2.5-coder-0.5b"),
        (8, 60, 0, "qwen2.5-coder-1.5b-q4"),
        (16, 110, 0, "mellum2-12b-a2.5b"),
        (16, 400, 8, "qwen2.5-coder-7b-q4"),
        (32, 500, 12, "qwen2.5-coder-7b"),
        (64, 900, 20, "codestral-22b"),
        (64, 900, 24, "qwen3-coder-30b-a3b"),
    ],
)
def test_the_completion_pair_of_laptops_and_gpus(
    memory_gb: int, bandwidth: float, gpu_gb: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the registry; `bandwidth` is that of the GPU if there is one."""
    measured = Measurement(bandwidth, "copy", "2026-11-27")
    for name, value in (
        ("here.all_memory", memory_gb * GB),
        ("recommend.all_memory", memory_gb * GB),
        ("here.device.driver_present", gpu_gb > 0),
        ("here.gpu_is_there", gpu_gb > 0),
        ("here.all_gpu_memory", gpu_gb * GB),
    ):
        monkeypatch.setattr(f"localdflash.loading.plan.{name}", lambda *_, result=value, **__: result)
    monkeypatch.setattr(
        "localdflash.loading.plan.here.measurements.bandwidth",
        lambda on_gpu=False: measured if on_gpu or not gpu_gb else replace(measured, value=40.0),
    )
    found = completion(load_registry().pairs.values())
    assert found
    assert found.pair.id == expected


def test_if_no_pair_is_fast_enough_the_fastest_is_recommended() -> None:
    found = chat([DENSE, entry("denser", 24, 40)])
    assert found
    assert found.pair == DENSE
