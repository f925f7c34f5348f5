"""`models plan` and `models ps`, on simulated machines with more and less memory."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from localdflash.base.machine import cgroups, measurements
from localdflash.base.machine import hardware as machine
from localdflash.loading.plan import planner
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from tests.cli.conftest import Command
from tests.support.registry_entries import WAITING, register

GB = 10**9


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, without_cpu_engine: str) -> None:
    """Simulate 20 GB of free memory, read at 50 GB/s, without a GPU or our CPU engine."""
    monkeypatch.setattr(machine, "bandwidth", lambda: 50.0)
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    set_free_memory(20 * GB, monkeypatch)


def set_free_memory(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=count, total=32 * GB))
    monkeypatch.setattr(cgroups, "folders", lambda: [])
    monkeypatch.setattr(free, "mapped_bytes", lambda: 0)


def run_plan(run: Command, *arguments: object) -> Any:
    done = run("models", "plan", *arguments, "--json")
    assert done.err == ""
    return done.code, json.loads(done.out)


def test_plan_of_a_pair_that_fits(run: Command) -> None:
    code, plan = run_plan(run, "embedded")
    assert (code, plan["fits"], plan["context"], plan["backend"]) == (0, True, 1024, "llama.cpp")
    assert plan["total"] == sum(plan["parts"].values()) + plan["margin"] < plan["free"]
    assert plan["parts"].keys() == {
        *("target weights", "target K/V", "graphs and scratch", "drafter weights", "drafter K/V", "program")
    }
    assert plan["free"] == 20 * GB + plan["parts"]["program"]  # which this process holds already
    assert (plan["quantization"], plan["best_quantization"]) == ("Q8_0", "F16")
    assert plan["why"].endswith("no CUDA engine: no NVIDIA driver was found")
    speed = plan["speed"]
    assert speed["plain"] == pytest.approx(50e9 / speed["bytes_per_token"])
    assert (speed["tau"], speed["drafted"]) == (None, None)
    measurements.remember("tau of embedded", 3.0, "a test")
    speed = run_plan(run, "embedded")[1]["speed"]
    assert speed["plain"] < speed["drafted"] < 3 * speed["plain"]
    lines = dict(line.split("  ", 1) for line in run("models", "plan", "embedded").out.splitlines() if "  " in line)
    assert {"target weights", "margin", "total", "free memory", "fits", "largest context that fits"} <= lines.keys()
    assert "50.0 GB/s" in lines["memory bandwidth"]
    assert "at most" in lines["speed, estimated"]


def test_too_little_memory_is_reported_with_what_would_fit(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_memory(445_000_000, monkeypatch)  # 419 MB of margin
    code, plan = run_plan(run, "embedded", "--context", "1024")
    assert (code, plan["fits"], plan["context"], plan["drafter"]) == (0, True, 1024, "none")
    assert "the drafter was left out" in plan["verdict"]
    set_free_memory(430_300_000, monkeypatch)
    code, plan = run_plan(run, "embedded", "--context", "1024")
    assert (code, plan["fits"], plan["context"], plan["drafter"]) == (4, False, 1024, "unmodified")
    assert plan["best_quantization"] in ("Q6_K", "Q5_K_M", "Q4_K_M")
    fitting = plan["largest_context_without_drafter"]
    assert plan["verdict"].endswith(f"--context {fitting} fits")
    assert run_plan(run, "embedded", "--context", fitting)[0] == 0
    assert f"no: {plan['verdict']}" in run("models", "plan", "embedded", "--context", "1024").out


def test_plan_errors(fails: Any, home: Path, tmp_path: Path) -> None:
    register(home, WAITING)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for code, message, *arguments in (
        (3, "did you mean", "qwen3-8c"),
        (3, "no backend runs", "waiting"),
        (2, "trained for", "embedded", "--context", "2000"),
        (2, "context of 7 tokens: expected 8 to 1024, which target.gguf", "embedded", "--context", "7"),
        (1, "no NVIDIA driver", "embedded", "--backend", "cuda"),
        (1, "it was not built", "embedded", "--backend", "cpu"),
        (2, "--device gpu: not available with --backend cpu", "embedded", "--backend", "cpu", "--device", "gpu"),
        (3, "broken GGUF file", tmp_path / "broken.gguf"),
    ):
        assert message in fails(code, "models", "plan", *arguments)
    assert "no daemon is running" in fails(1, "models", "ps")


def test_plan_for_a_gpu(run: Command, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_gpu(count: int) -> None:
        budget = MemoryBudget(count, 700 << 20, "GPU memory")
        monkeypatch.setattr("localdflash.loading.plan.planner.gpu_budget", lambda _device: budget)

    gpu, host = (measurements.Measurement(speed, "a test", "2026-01-01") for speed in (900.0, 50.0))
    monkeypatch.setattr(measurements, "bandwidth", lambda on_gpu=False: gpu if on_gpu else host)
    with_gpu(24 * GB)
    code, plan = run_plan(run, tiny_pair / "target.gguf")
    assert (code, plan["backend"], plan["drafter"], plan["what"]) == (0, "cuda", "8 bits", "GPU memory")
    assert plan["speed"]["bandwidth"]["value"] == 900.0
    codes = run_plan(run, tiny_pair / "target.gguf", "--kv", "int8")[1]
    assert codes["context"] == plan["context"]
    assert codes["parts"]["target K/V"] < 0.6 * plan["parts"]["target K/V"]
    coded = run_plan(run, tiny_pair / "target.gguf", "--kv", "k8v4")[1]
    assert coded["backend"] != "cuda"
    assert "no CUDA engine: --kv k8v4: " in coded["why"]
    assert coded["parts"]["target K/V"] < 0.5 * plan["parts"]["target K/V"]
    with_gpu(plan["total"] - 1)
    code, plan = run_plan(run, tiny_pair / "target.gguf", "--context", "1024")
    assert (code, plan["drafter"], plan["context"]) == (0, "4 bits", 1024)
    assert "the drafter has 4 bits" in plan["verdict"]


def test_speed_with_llama_cpp_on_a_gpu(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planner.make_plan("embedded")
    partly, whole = replace(made.speed, bytes_on_gpu=2 * GB), replace(made.speed, plain=None)
    for speed, said in ((partly, "in memory, and 2.00 GB on the GPU are read"), (whole, "the GPU reads all weights")):
        plan = replace(made, speed=speed)
        monkeypatch.setattr(planner, "make_plan", lambda *_, plan=plan: plan)
        assert said in run("models", "plan", "embedded").out


def test_plan_beside_another_pair(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    _, alone = run_plan(run, "embedded")
    own = sum(size for name, size in alone["parts"].items() if name != "program")
    code, both = run_plan(run, "embedded", "--beside", "embedded")
    assert (code, both["fits"], both["context"]) == (0, True, alone["context"])
    assert both["free"] - both["parts"]["program"] == 20 * GB - own
    set_free_memory(alone["margin"] + own * 5 // 4, monkeypatch)
    assert run_plan(run, "embedded", "--context", 1024)[0] == 0
    code, both = run_plan(run, "embedded", "--context", 1024, "--beside", "embedded")
    assert (code, both["fits"]) == (4, False)
    set_free_memory(alone["margin"], monkeypatch)
    assert "embedded does not fit" in run("models", "plan", "embedded", "--beside", "embedded").err


PAIR = {
    "pair": "embedded",
    "roles": ["chat", "completion"],
    "backend": "llama.cpp",
    "context": 1024,
    "device": "CPU",
    "gpu_check": "its check on this GPU failed (head: NaN)",
    "memory": {"target weights": 7_000_000, "program": 60_000_000},
    "predicted": {"target weights": 7_000_000, "drafter weights": 5_000_000},
    "since": 1_767_261_600.5,
    "requests": 3,
}
STATE = {**PAIR, "pairs": [PAIR], "idle_seconds": 12.4}


def test_ps_prints_planned_and_measured_memory(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(get={"/ps": STATE}.__getitem__)
    monkeypatch.setattr("localdflash.server.client.find_daemon", lambda: client)
    fields, table, _ = run("models", "ps").out.split("\n\n")
    rows = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in map(split, table.splitlines())}
    assert rows["target weights"] == ["7.0 MB", "7.0 MB"]
    assert (rows["drafter weights"], rows["program"]) == (["5.0 MB", "-"], ["-", "60.0 MB"])
    assert rows["total"] == ["12.0 MB", "67.0 MB"]
    shown = dict(line.split("  ", 1) for line in fields.splitlines())
    assert shown["loaded"].strip().startswith("2026-01-01 ")
    assert shown["for"].strip() == "chat and completion"
    assert shown["gpu check"].strip() == PAIR["gpu_check"]
    assert json.loads(run("models", "ps", "--json").out) == STATE


def split(line: str) -> list[str]:
    return line.split("  ")


def test_offline_plan_uses_the_registry_entry(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.models.registry.hub.offline_variable", lambda: "HF_HUB_OFFLINE")
    done = run("models", "plan", "qwen3-8b", "--json")
    document = json.loads(done.out)
    assert (done.code, document["memory"], document["free"], document["fits"]) == (0, 10 * GB, 20 * GB, True)
    assert "HF_HUB_OFFLINE" in done.err
    set_free_memory(5 * GB, monkeypatch)
    assert run("models", "plan", "qwen3-8b").code == 4
