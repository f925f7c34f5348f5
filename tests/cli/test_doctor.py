"""`localdflash doctor`: output, exit code and self-tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.base.machine import measurements
from localdflash.cli.doctor import command, self_test
from localdflash.cli.doctor.check import DoctorCheck, Finding
from tests.cli.conftest import Command


def test_doctor_on_a_working_installation(run: Command) -> None:
    done = run("doctor", "--json", "--full")
    checks = json.loads(done.out)
    assert [check["name"] for check in checks] == [probe.name for probe in command._checks()]
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks)
    assert (done.code, [check for check in checks if check["status"] == "failed"]) == (0, [])
    embedded, completion, chat = checks[-3:]
    assert "identical" in embedded["detail"]
    assert all(check["detail"].startswith("embedded, ") for check in (completion, chat))
    assert "models pull smollm2-135m" in chat["remedy"]
    tau = measurements.recall("tau of embedded")
    assert tau is not None
    assert f"{tau.value:.2f} tokens per verify step" in embedded["detail"]


def test_warning_exits_with_0_and_prints_its_remedy(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(name: str) -> Finding:
        return Finding(name, "warning", "little\x1b[2J is free", "close other programs")

    monkeypatch.setattr(command, "_checks", lambda: (DoctorCheck("memory", little, ""),))
    done = run("doctor")
    assert done.code == 0
    line, remedy, more = done.out.splitlines()
    assert line.split(maxsplit=2) == ["warning", "memory", "little\\x1b[2J is free"]
    assert remedy.strip() == "close other programs"
    assert "doctor --full" in more


@pytest.mark.parametrize(("rows", "status"), [("fast", "ok"), ("exact", "failed")])
def test_text_changed_by_drafting_fails_unless_widths_are_uncertified(
    rows: str, status: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path
) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    monkeypatch.setattr(command, "_checks", lambda: (DoctorCheck("chat pair", self_test.chat_pair, ""),))
    pair = str(tiny_pair / "target.gguf")
    for name, value in (("CHAT_PAIR", pair), ("MODEL_BACKEND", "llama.cpp"), ("MODEL_ROWS", rows)):
        monkeypatch.setenv(f"LOCALDFLASH_{name}", value)
    runs = iter([[7, 8], [7, 9]])
    monkeypatch.setattr(engine, "generate", lambda *_: iter([Step(next(runs), "none", 0, 0, 0.0, 1.0)]))
    done = run("doctor", "--json")
    (check,) = json.loads(done.out)
    assert (check["status"], done.code) == (status, int(status == "failed")), check
    assert ("drafted text may differ" in check["detail"]) == (rows == "fast")
    assert measurements.recall(f"tau of {pair}") is None


@pytest.mark.checks_gpu
def test_check_gpu_without_a_gpu(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    assert "no NVIDIA driver" in fails(1, "doctor", "--check-gpu", "embedded")
