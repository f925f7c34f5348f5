import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.base.machine import measurements
from localdflash.cli.doctor import command, self_test
from localdflash.cli.doctor.check import DoctorCheck, Finding, Status
from tests.cli.conftest import Command
from tests.support.gguf_files import write_header


def test_a_sound_installation(run: Command) -> None:
    done = run("doctor", "--json")
    checks = json.loads(done.out)
    assert [check["name"] for check in checks] == [probe.name for probe in command._probes()]
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks)
    assert (done.code, [check for check in checks if check["status"] == "failed"]) == (0, [])
    embedded, completion, chat = checks[-3:]
    assert "identical" in embedded["detail"]
    assert all(check["detail"].startswith("embedded, ") for check in (completion, chat))
    assert "models pull smollm2-135m" in chat["remedy"]
    tau = measurements.recall("tau of embedded")
    assert tau is not None
    assert f"{tau.value:.2f} per verify" in embedded["detail"]


def test_without_the_self_test_it_is_quick() -> None:
    import torch

    assert torch.__version__  # imported outside of the measured time
    began = time.process_time()
    for probe in command._probes()[:-3]:
        probe.check()
    assert time.process_time() - began < 3


def test_a_broken_check_hides_no_other(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Finding:
        raise ImportError("no shared library")

    probes = [replace(probe, run=broken) if probe.name != "python" else probe for probe in command._probes()]
    monkeypatch.setattr(command, "_probes", lambda: probes)
    done = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)}
    assert (done.code, list(checks)) == (1, [probe.name for probe in probes])
    assert (checks["python"]["status"], checks["cuda"]["status"]) == ("ok", "warning")
    assert "no shared library" in checks["llama-cpp-python"]["detail"]
    assert "install" in checks["llama-cpp-python"]["remedy"]


def test_a_warning_is_no_failure_and_its_remedy_is_printed_below(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(name: str) -> Finding:
        return Finding(name, "warning", "little\x1b[2J is free", "close other programs")

    monkeypatch.setattr(command, "_probes", lambda: (DoctorCheck("memory", little, ""),))
    done = run("doctor")
    assert done.code == 0
    line, remedy = done.out.splitlines()
    assert line.split(maxsplit=2) == ["warning", "memory", "little\\x1b[2J is free"]
    assert remedy.strip() == "close other programs"


@pytest.mark.parametrize(("rows", "status"), [("fast", "ok"), ("exact", "failed")])
def test_a_text_that_drafting_changed_is_a_failure_unless_the_widths_are_not_certified(
    rows: str, status: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path
) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    monkeypatch.setattr(command, "_probes", lambda: (DoctorCheck("chat pair", self_test.chat_pair, ""),))
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


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["chat", "completion"])
def test_the_pairs_of_the_settings_are_tried_too(
    role: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path, tmp_path: Path
) -> None:
    probe = DoctorCheck(f"{role} pair", getattr(self_test, f"{role}_pair"), "", required=False)
    monkeypatch.setattr(command, "_probes", lambda: (probe,))
    talks = write_header(tmp_path / "talks.gguf", "a")
    refused = {"chat": (tmp_path / "none.gguf", "no such .gguf file"), "completion": (talks, "no fill-in-the-middle")}
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "llama.cpp")
    for pair, status, said in (
        (tiny_pair / "target.gguf", "ok", "identical"),
        (refused[role][0], "warning", refused[role][1]),
    ):
        monkeypatch.setenv(f"LOCALDFLASH_{role.upper()}_PAIR", str(pair))
        (check,) = json.loads(run("doctor", "--json").out)
        assert (check["status"], said in check["detail"]) == (status, True), check


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("failed", 1)])
def test_check_gpu(state: Status, code: int, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def again(spec: str) -> Iterator[Finding]:
        asked.append(spec)
        yield Finding("gpu check", state, "embedded, as it was found")

    monkeypatch.setattr("localdflash.cli.doctor.gpu_check.again", again)
    done = run("doctor", "--check-gpu", "embedded")
    assert (done.code, asked) == (code, ["embedded"])
    assert done.out.split()[:4] == [state, "gpu", "check", "embedded,"]


@pytest.mark.checks_gpu
def test_check_gpu_without_a_gpu(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    assert "no NVIDIA driver" in fails(1, "doctor", "--check-gpu", "embedded")
