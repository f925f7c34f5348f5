"""What must be found before `auto` gives a pair to the CUDA engine, and what happens where it is not."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda import identity
from localdflash.base.errors import DeviceFailed, LocaldflashError, ModelError, NoDevice, OutOfMemory
from localdflash.loading import automatic, child, proof
from localdflash.loading.engine_choice import HostChoice
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.verdict import Subject, keep, recall
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from tests.support.pretended_gpu import STAGES, pretend, running

pytestmark = pytest.mark.checks_gpu
Say = Callable[..., list[list[str]]]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that seems to have an RTX 4090; the patcher changes it."""
    pretend(monkeypatch)
    return monkeypatch


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Has the child say lines, then run a program; the commands that were started."""
    started: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **rest: Any) -> Any:
        started.append(command)
        return real(command, **rest)

    monkeypatch.setattr(subprocess, "Popen", popen)

    def say(*lines: dict[str, Any], then: str = "") -> list[list[str]]:
        said = "\n".join(map(json.dumps, lines))
        monkeypatch.setattr(proof, "PROGRAM", f"import os\nprint({said!r}, flush=True)\n{then}")
        return started

    return say


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, files: LocalPair) -> Callable[..., tuple[Runner, str]]:
    """The backend that `auto` takes after the check, and its first notice; `error` is what the CUDA engine raises."""

    subject_of = identity.subject

    def load(options: Options, error: BaseException | None = None) -> tuple[Runner, str]:
        def load_on(backend: Runner, _files: LocalPair, _options: Options) -> Running:
            if error and backend == "cuda":
                monkeypatch.setattr(identity, "subject", lost)
                raise error
            return running()

        def lost(*_: Any) -> Any:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(identity, "subject", subject_of)  # of a process in which nothing failed
        monkeypatch.setattr(automatic, "load_on", load_on)
        monkeypatch.setattr(automatic, "gpu_is_there", lambda: False)
        monkeypatch.setattr(automatic, "choose", lambda *_: HostChoice("cpu", "a test"))
        proof.check_first(files, options)
        backend, found = automatic.load_best(files, options)
        return backend, "; ".join(filter(None, found.notices))

    return load


def begins(stage: str) -> list[dict[str, Any]]:
    """What a child says up to the beginning of a stage."""
    return [{"at": name, "stage": True} for name in STAGES[1 : STAGES.index(stage) + 1]]


def test_a_sound_engine_is_checked_once_and_runs_the_pair(load: Any, say: Say, options: Options) -> None:
    started = say({"at": "operations", "stage": True}, {"kind": "sound"})
    assert load(options) == ("cuda", "")
    assert load(options) == ("cuda", "")
    assert len(started) == 1


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[3]])
def test_what_fails_is_named_and_another_backend_runs_the_pair(
    stage: str, load: Any, say: Say, options: Options, subject: Subject
) -> None:
    line = f"{stage}: it is not the reference's"
    started = say(*begins(stage), {"kind": "unsound", "operation": stage, "said": line})
    for _ in range(2):
        assert load(options) == (
            "cpu",
            f"the CPU engine runs this pair, not the CUDA engine: its check on this GPU failed ({line}): `localdflash"
            f" doctor --check-gpu {options.pair}` repeats it",
        )
    assert len(started) == 1, "the verdict was not kept"
    found = recall(subject.place)
    assert found
    assert (found.state, found.operation) == ("unsound", stage)


DEATHS = {
    "SIGKILL": f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "hang": "import time; time.sleep(600)",
}


@pytest.mark.parametrize(("death", "stage"), [*zip(DEATHS, STAGES, strict=False)])
def test_a_child_that_dies_is_a_verdict(
    death: str, stage: str, load: Any, say: Say, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    if death == "hang":
        monkeypatch.setattr(proof, "PATIENCE", 0.5)
    started = say(*begins(stage), then=DEATHS[death])
    backend, notice = load(options)
    assert backend == "cpu"
    how = "it hung for " if death == "hang" else f"{death} ended the process (without a word)"
    assert f"not the CUDA engine: its check on this GPU failed ({stage}: {how}" in notice
    assert notice.isprintable()
    assert load(options) == (backend, notice)
    assert len(started) == 1


def test_a_child_that_goes_on_is_not_ended(
    load: Any, say: Say, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes."""
    monkeypatch.setattr(proof, "PATIENCE", 0.6)
    talks = (
        'import time\nfor n in range(8): time.sleep(0.2); print(\'{"compiled": %d, "kernels": 8}\' % n, flush=True)\n'
    )
    say(*begins("graphs"), then=f"{talks}print({json.dumps({'kind': 'sound'})!r})")
    heard = list[tuple[int, int]]()
    assert load(replace(options, compiling=lambda *counts: heard.append(counts))) == ("cuda", "")
    assert heard == [(n, 8) for n in range(8)]


def test_the_operation_that_was_running_is_named(load: Any, say: Say, options: Options) -> None:
    say(*begins("operations"), {"at": "qkv of layer 3", "stage": False}, then=DEATHS["SIGSEGV"])
    assert "(qkv of layer 3: SIGSEGV ended the process" in load(options)[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_child_that_others_end_is_none(number: int, load: Any, say: Say, options: Options) -> None:
    started = say(*begins("rows"), then=f"os.kill(os.getpid(), {int(number)}); import time; time.sleep(60)")
    for _ in range(2):
        backend, notice = load(options)
        assert (backend, "it could not be checked on this GPU: rows: " in notice) == ("cpu", True)
    assert len(started) == 2


@pytest.mark.parametrize(
    "then",
    [
        "raise ValueError",
        "print('{')",
        "",
    ],
)
def test_a_child_without_a_last_line_is_none(then: str, load: Any, say: Say, options: Options) -> None:
    say(*begins("texts"), then=then)
    backend, notice = load(options)
    assert (backend, "it could not be checked on this GPU: texts: the process ended by itself" in notice) == (
        "cpu",
        True,
    )


def test_a_check_that_ended_its_process_is_not_repeated(
    load: Any, say: Say, options: Options, subject: Subject
) -> None:
    """The machine, or the whole engine, went down in the middle of it."""
    started = say({"kind": "sound"})
    keep(subject.place, subject.verdict("begun", "graphs"))
    backend, notice = load(options)
    assert backend == "cpu"
    assert "not the CUDA engine: the last process that checked it here died (graphs): `localdflash doctor" in notice
    assert not started


def test_the_file_says_how_far_a_check_is(
    load: Any, say: Say, options: Options, subject: Subject, tmp_path: Path
) -> None:
    copy = tmp_path / "seen"
    wait = f"import time, shutil; time.sleep(0.5); shutil.copy({str(subject.place)!r}, {str(copy)!r})\n"
    say(*begins("graphs"), then=f"{wait}print({json.dumps({'kind': 'sound'})!r})")
    assert load(options)[0] == "cuda"
    seen = recall(copy)
    assert seen
    assert (seen.state, seen.operation) == ("begun", "graphs")


def test_while_another_process_checks_another_backend_runs_the_pair(
    load: Any, say: Say, options: Options, subject: Subject
) -> None:
    code = (
        "import sys; from pathlib import Path; from localdflash.base.system.file_lock import process_lock\n"
        "with process_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    keep(subject.place, subject.verdict("begun", "loading"))
    command = [sys.executable, "-P", "-c", code, str(subject.place.with_suffix(".lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        started = say({"kind": "sound"})
        backend, notice = load(options)
        assert proof.check(subject, local_files(load_registry().resolve(options.pair)), options) is None
        other.communicate()
    assert (backend, "not the CUDA engine: another process is checking it on this GPU" in notice) == ("cpu", True)
    assert started == [command]


def test_ctrl_c_leaves_no_verdict(
    files: LocalPair, options: Options, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        assert recall(subject.place)
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proof.check_first(files, options)
    assert recall(subject.place) is None


def test_without_a_compiler_no_child_is_started_and_the_next_load_looks_again(
    load: Any, say: Say, options: Options, gpu: pytest.MonkeyPatch
) -> None:
    started = say({"kind": "sound"})
    gpu.setattr(devices, "missing_tools", lambda: "there is no C compiler for Triton: install gcc")
    backend, notice = load(options)
    assert backend == "cpu"
    assert "not the CUDA engine: it could not be checked on this GPU: there is no C compiler for Triton: " in notice
    assert not started
    gpu.setattr(devices, "missing_tools", lambda: "")
    assert load(options)[0] == "cuda"


def test_no_process_for_it(load: Any, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", none)
    assert "it could not be checked on this GPU: there is no process for it: Resource temporarily" in load(options)[1]


def test_a_verdict_that_cannot_be_kept_is_none(
    load: Any, say: Say, options: Options, home: Path, files: LocalPair, subject: Subject
) -> None:
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "gpu-checks").touch()
    started = say({"kind": "sound"})
    assert (
        "not the CUDA engine: it was not checked on this GPU yet: `localdflash doctor --check-gpu" in load(options)[1]
    )
    assert not started
    with pytest.raises(LocaldflashError, match="gpu-checks"):
        proof.check(subject, files, options)


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"state": "sound"}',
    ],
)
def test_a_damaged_file_is_no_verdict(damage: str, load: Any, say: Say, options: Options, subject: Subject) -> None:
    subject.place.parent.mkdir(parents=True)
    subject.place.write_text(damage)
    started = say({"kind": "sound"})
    assert load(options)[0] == "cuda"
    assert len(started) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cpu"},
        {"gpu_layers": 4},
        {"backend": "cuda"},
    ],
)
def test_a_pair_that_auto_does_not_give_it_is_not_checked(
    changes: dict[str, Any], files: LocalPair, say: Say, options: Options
) -> None:
    started = say({"kind": "sound"})
    proof.check_first(files, replace(options, **changes))
    assert not started


def test_a_pair_that_it_cannot_run_takes_no_child(
    load: Any, say: Say, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise ModelError("tensor x is IQ4_XS")

    monkeypatch.setattr("localdflash.backends.cuda.identity.CudaSizes", refuse)
    started = say({"kind": "sound"})
    assert load(options) == ("cpu", "the CPU engine runs this pair, not the CUDA engine: tensor x is IQ4_XS")
    assert not started


# Loading after a good check


def test_a_gpu_that_is_lost_while_loading_ends_the_process_once(load: Any, say: Say, options: Options) -> None:
    """It answers no question from then on. The supervisor's next process has another backend."""
    started = say({"kind": "sound"})
    with pytest.raises(DeviceFailed) as error:
        load(options, DeviceFailed("the GPU failed (CUDA error: an illegal memory access)"))
    assert error.value.exit_code == 5
    backend, notice = load(options)
    assert (backend, "its check on this GPU failed (the GPU failed (CUDA error: an illegal" in notice) == ("cpu", True)
    assert len(started) == 1


@pytest.mark.parametrize(
    "error",
    [
        NoDevice("it could not start"),
        OutOfMemory("full"),
    ],
)
def test_what_else_breaks_leaves_the_verdict_as_it_is(
    error: LocaldflashError, load: Any, say: Say, options: Options
) -> None:
    say({"kind": "sound"})
    assert load(options, error) == ("cpu", f"the CPU engine runs this pair, not the CUDA engine: {error}")
    assert load(options) == ("cuda", "")


# What was asked for


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA engine is llama.cpp here."""
    from localdflash.loading.backends import load_on as real

    def load_on(backend: Runner, files: LocalPair, options: Options) -> Running:
        return real("llama.cpp", files, replace(options, device="cpu", rows="fast", context=64))

    monkeypatch.setattr("localdflash.loading.load_pair.load_on", load_on)
    monkeypatch.setattr(automatic, "load_on", load_on)


@pytest.mark.usefixtures("on_cuda")
def test_who_asks_for_the_engine_gets_it_and_one_line(options: Options, say: Say, subject: Subject) -> None:
    options = replace(options, backend="cuda")
    started = say({"kind": "sound"})
    again = f"`localdflash doctor --check-gpu {options.pair}`"
    with LoadedPair(options) as loaded:
        assert loaded.notice.startswith(f"--backend cuda: it was not checked on this GPU yet: {again} does")
        assert loaded.gpu_check.startswith("it was not checked")
    keep(subject.place, subject.verdict("unsound", "head", "head: NaN"))
    with LoadedPair(options) as loaded:
        assert loaded.notice.startswith(f"--backend cuda: its check on this GPU failed (head: NaN): {again} repeats it")
        assert "\n" not in loaded.notice
    keep(subject.place, subject.verdict("begun", "rows"))
    with LoadedPair(options) as loaded:
        assert loaded.notice.startswith("--backend cuda: the last process that checked it here died (rows)")
    keep(subject.place, subject.verdict("sound"))
    with LoadedPair(options) as loaded:
        assert (loaded.notice, loaded.gpu_check, loaded.backend) == ("", "sound", "cuda")
    assert not started


@pytest.mark.usefixtures("on_cuda")
def test_a_pair_is_checked_before_it_is_loaded(options: Options, say: Say) -> None:
    started = say({"kind": "sound"})
    with LoadedPair(options) as loaded:
        assert (loaded.backend, loaded.gpu_check, loaded.notice) == ("cuda", "sound", "")
    with LoadedPair(replace(options, kv="int8"), tried=True) as loaded:  # in a trial's child nothing is checked
        assert loaded.backend != "cuda"
        assert loaded.gpu_check.startswith("it was not checked on this GPU yet")
    assert len(started) == 1


@pytest.mark.usefixtures("without_cpu_engine")
def test_without_a_driver_there_is_nothing_to_check(options: Options, say: Say, gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(devices, "driver_present", lambda: False)
    started = say({"kind": "sound"})
    with LoadedPair(replace(options, rows="fast")) as loaded:
        assert (loaded.notice, loaded.gpu_check) == ("", "")
    assert not started
