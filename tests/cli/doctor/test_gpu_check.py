"""The verdicts on the CUDA engine in `doctor`, and `doctor --check-gpu`."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.backends.cuda import device as devices
from localdflash.base.errors import LocaldflashError, NoDevice
from localdflash.cli.doctor import gpu_check
from localdflash.loading import proof
from localdflash.loading.proof import Subject, Verdict, write_verdict

pytestmark = pytest.mark.checks_gpu
MACHINE, OLD_MACHINE = ("RTX 4090", "driver 580"), ("RTX 4090", "driver 570")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(devices, "driver_present", lambda: True)
    monkeypatch.setattr("localdflash.backends.cuda.identity.list_machines", lambda _device="auto": [MACHINE])
    return monkeypatch


def make(home: Path, pair: str, machine: tuple[str, ...] = MACHINE, **options: Any) -> Subject:
    name = f"{pair}{machine[1]}{options}".replace(" ", "").replace("/", "")
    return Subject(pair, machine, options, home / "cache" / "gpu-checks" / f"{name}.json")


def test_no_verdict_without_a_gpu_or_a_check(gpu: pytest.MonkeyPatch, home: Path) -> None:
    def none(_device: str = "auto") -> Any:
        raise NoDevice("this PyTorch has no CUDA")

    old = make(home, "embedded", OLD_MACHINE)
    write_verdict(old.path, old.verdict("unsound", "head", "head: NaN"))  # with another driver
    found = gpu_check.report_verdicts("gpu check")
    assert (found.status, found.remedy) == ("ok", gpu_check.REMEDY)
    gpu.setattr("localdflash.backends.cuda.identity.list_machines", none)
    assert (gpu_check.report_verdicts("gpu check").status, gpu_check.report_verdicts("gpu check").remedy) == ("ok", "")
    gpu.setattr(devices, "driver_present", lambda: False)
    found = gpu_check.report_verdicts("gpu check")
    assert (found.status, "no NVIDIA driver" in found.detail) == ("ok", True)


def test_every_verdict_is_shown(home: Path) -> None:
    subjects = [make(home, name) for name in ("a", "b", "c", "d")]
    write_verdict(subjects[0].path, subjects[0].verdict("sound"))
    assert (gpu_check.report_verdicts("gpu check").status, gpu_check.report_verdicts("gpu check").remedy) == ("ok", "")
    write_verdict(subjects[1].path, subjects[1].verdict("unsound", "head of output", "head of output: NaN"))
    write_verdict(subjects[2].path, subjects[2].verdict("undecided", "compiling", "there is no C compiler"))
    write_verdict(subjects[3].path, subjects[3].verdict("begun", "graphs"))
    found = gpu_check.report_verdicts("gpu check")
    assert (found.status, found.remedy) == ("warning", gpu_check.REMEDY)
    starts = ("a is sound (20", "b failed (head of output: NaN, 20", "c ", "d ")
    assert all(line.startswith(start) for line, start in zip(found.detail.split("; "), starts, strict=True))
    assert "(there is no C compiler, 20" in found.detail
    assert "(graphs, 20" in found.detail


@pytest.fixture
def checks(home: Path, gpu: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the checks made so far; the first finds the engine sound, others do not."""
    made: list[tuple[str, dict[str, Any]]] = []

    def of(_files: Any, options: Any) -> Subject:
        return make(home, options.pair, kv=options.kv, native_fp4=options.native_fp4)

    def check(subject: Subject, _files: Any, _options: Any) -> Verdict | None:
        made.append((subject.pair, subject.options))
        return subject.verdict("sound") if len(made) < 2 else subject.verdict("unsound", "qkv", "qkv of layer 0: NaN")

    gpu.setattr(Subject, "of", of)
    gpu.setattr(proof, "check", check)
    return made


def test_check_gpu_uses_the_settings_and_repeats_earlier_checks(
    home: Path, checks: list[Any], gpu: pytest.MonkeyPatch
) -> None:
    for other in (make(home, "embedded", kv="int8"), make(home, "another", native_fp4=True)):
        write_verdict(other.path, other.verdict("unsound", "head", "head: NaN"))
    found = list(gpu_check.check_pair("embedded"))
    plain, int8 = ({"kv": kv, "native_fp4": False} for kv in ("auto", "int8"))
    assert checks == [("embedded", plain), ("embedded", int8)]
    assert [check.status for check in found] == ["ok", "failed"]
    assert "qkv of layer 0: NaN" in found[1].detail
    gpu.setattr(proof, "check", lambda *_: None)
    with pytest.raises(LocaldflashError, match="another process"):
        list(gpu_check.check_pair("embedded"))
