import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.base.machine import measurements
from localdflash.cli.doctor import command, self_test
from localdflash.cli.doctor.check import Check, Probe, Status
from tests.cli.conftest import Command
from tests.support.gguf_files import write_header

NAMES = [
    *("python", "torch", "cuda", "GPUs", "gpu check", "cpu engine", "llama-cpp-python", "llama.cpp on GPUs", "jinja2"),
    "offline mode",
    *(
        "processor",
        "memory",
        "bandwidth",
        "models",
        "inotify",
        "socket",
        "daemon",
        "terminal",
        "editors",
        "embedded pair",
        "completion pair",
        "chat pair",
    ),
]


def test_a_sound_installation(run: Command) -> None:
    done = run("doctor", "--json")
    checks = json.loads(done.out)
    assert [check["name"] for check in checks] == NAMES
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks)
    assert (done.code, [check for check in checks if check["status"] == "failed"]) == (0, [])
    assert "identical to plain decoding" in checks[-3]["detail"]
    assert [check["detail"] for check in checks[-2:]] == ["embedded, as above"] * 2
    assert "models pull smollm2-135m" in checks[-1]["remedy"]
    tau = measurements.recall("tau of embedded")
    assert tau is not None
    assert f"{tau.value:.2f} per verify" in checks[-3]["detail"]


def test_without_the_self_test_it_is_quick() -> None:
    import torch

    assert torch.__version__  # what other tests have imported, too
    began = time.process_time()  # not the clock: other tests may run beside
    for test in command._probes()[:-3]:
        test.check()
    assert time.process_time() - began < 3


def test_a_broken_part_hides_no_other(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> Check:
        raise ImportError("no shared library")

    tests = [replace(test, run=broken) if test.name != "python" else test for test in command._probes()]
    monkeypatch.setattr(command, "_probes", lambda: tests)
    done = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)}
    assert (done.code, list(checks)) == (1, NAMES)
    assert (checks["python"]["status"], checks["cuda"]["status"]) == ("ok", "warning")
    assert checks["llama-cpp-python"]["detail"] == "cannot be loaded: no shared library"
    assert "install" in checks["llama-cpp-python"]["remedy"]


def test_a_warning_is_no_failure_and_remedies_stand_below(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(name: str) -> Check:
        return Check(name, "warning", "little\x1b[2J is free", "close other programs")

    monkeypatch.setattr(command, "_probes", lambda: (Probe("memory", little, ""),))
    done = run("doctor")
    assert done.code == 0
    line, remedy = done.out.splitlines()
    assert line.split(maxsplit=2) == ["warning", "memory", "little\\x1b[2J is free"]
    assert remedy.strip() == "close other programs"


def test_a_changed_text_is_a_failure(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    runs = iter([[7, 8], [7, 9]])
    monkeypatch.setattr(engine, "generate", lambda _pair, _request: iter([Step(next(runs), "none", 0, 0, 0.0, 1.0)]))
    monkeypatch.setattr(command, "_probes", lambda: (Probe("embedded pair", self_test.embedded_pair, ""),))
    done = run("doctor", "--json")
    (check,) = json.loads(done.out)
    assert (done.code, check["status"]) == (1, "failed")
    assert "drafting changed the text" in check["detail"]
    assert measurements.recall("tau of embedded") is None


@pytest.mark.parametrize(("rows", "status"), [("fast", "ok"), ("exact", "failed")])
def test_rows_that_are_not_certified_may_change_the_text(
    rows: str, status: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path
) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    monkeypatch.setattr(command, "_probes", lambda: (Probe("chat pair", self_test.chat_pair, ""),))
    for name, value in (("CHAT_PAIR", str(tiny_pair / "target.gguf")), ("MODEL_BACKEND", "llama.cpp")):
        monkeypatch.setenv(f"LOCALDFLASH_{name}", value)
    monkeypatch.setenv("LOCALDFLASH_MODEL_ROWS", rows)
    runs = iter([[7, 8], [7, 9]])
    monkeypatch.setattr(engine, "generate", lambda *_: iter([Step(next(runs), "none", 0, 0, 0.0, 1.0)]))
    (check,) = json.loads(run("doctor", "--json").out)
    assert check["status"] == status, check
    assert ("drafted text may differ" in check["detail"]) == (rows == "fast")


@pytest.mark.nightly
@pytest.mark.parametrize("role", ["chat", "completion"])
def test_the_pairs_of_the_settings_are_tried_too(
    role: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path, tmp_path: Path
) -> None:
    probe = Probe(f"{role} pair", getattr(self_test, f"{role}_pair"), "", required=False)
    monkeypatch.setattr(command, "_probes", lambda: (probe,))
    talks = write_header(tmp_path / "talks.gguf", "a")
    refused = {"chat": (tmp_path / "none.gguf", "no such .gguf file"), "completion": (talks, "no fill-in-the-middle")}
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "llama.cpp")
    for pair, status, said in (
        (tiny_pair / "target.gguf", "ok", "identical to plain decoding"),
        (refused[role][0], "warning", refused[role][1]),
    ):
        monkeypatch.setenv(f"LOCALDFLASH_{role.upper()}_PAIR", str(pair))
        (check,) = json.loads(run("doctor", "--json").out)
        assert (check["status"], said in check["detail"]) == (status, True), check


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("failed", 1)])
def test_the_check_of_a_gpu_by_hand(state: Status, code: int, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def again(spec: str) -> Iterator[Check]:
        asked.append(spec)
        yield Check("gpu check", state, "embedded, as it was found")

    monkeypatch.setattr("localdflash.cli.doctor.gpu_check.again", again)
    done = run("doctor", "--check-gpu", "embedded")
    assert (done.code, asked) == (code, ["embedded"])
    assert done.out.split() == [state, "gpu", "check", "embedded,", "as", "it", "was", "found"]


@pytest.mark.checks_gpu
def test_without_a_gpu_there_is_nothing_to_check_by_hand(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    done = run("doctor", "--check-gpu", "embedded")
    assert done.code == 1
    assert "no NVIDIA driver was found" in done.err
