import json
from collections.abc import Callable
from typing import Any

import pytest

from localdflash.cli import doctor
from localdflash.cli.doctor import Check
from localdflash.errors import ModelError

NAMES = ["python", "torch", "cuda", "llama-cpp-python", "processor", "memory", "embedded pair"]


def test_a_sound_installation(run: Callable[..., Any]) -> None:
    done = run("doctor", "--json")
    checks = json.loads(done.out)
    assert [check["name"] for check in checks] == NAMES
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks)
    assert (done.code, [check for check in checks if check["status"] == "failed"]) == (0, [])
    assert "identical to plain decoding" in checks[-1]["detail"]


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ModelError("target.gguf: broken"), "target.gguf: broken"),
        (ImportError("no shared library"), "cannot be loaded: no shared library"),
        (OSError("bad ELF header"), "cannot be loaded: bad ELF header"),
    ],
)
def test_a_broken_part_is_a_finding_with_a_remedy(
    error: Exception, detail: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_name: str) -> Check:
        raise error

    monkeypatch.setattr(doctor, "_llama", broken)
    monkeypatch.setattr(doctor, "_self_test", lambda name: Check(name, "ok", "fine"))
    done = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.out)}
    assert done.code == 1
    assert list(checks) == NAMES
    assert checks["llama-cpp-python"]["status"] == "failed"
    assert checks["llama-cpp-python"]["detail"] == detail
    assert "install" in checks["llama-cpp-python"]["remedy"]


def test_a_warning_is_no_failure(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Check("memory", "warning", "little is free", "close other programs"), Check("python", "ok", "3.11")]
    monkeypatch.setattr(doctor, "_checks", lambda: iter(found))
    done = run("doctor")
    assert done.code == 0
    header, first, second = done.out.splitlines()
    assert header.split() == ["CHECK", "STATUS", "DETAIL", "REMEDY"]
    assert first.split("  ")[0] == "memory"
    assert first.endswith("close other programs")
    assert second.split()[:2] == ["python", "ok"]


def test_a_changed_text_is_a_failure(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    runs = iter([[7, 8], [7, 9]])
    monkeypatch.setattr(engine, "generate", lambda _pair, _request: iter([Step(next(runs), "none", 0, 0, 0.0, 1.0)]))
    done = run("doctor", "--json")
    check = json.loads(done.out)[-1]
    assert (done.code, check["status"]) == (1, "failed")
    assert "drafting changed the text" in check["detail"]
