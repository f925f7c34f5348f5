"""The first-load check of the CUDA engine: `auto` uses the engine only after a check that passed."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from localdflash.backends.cuda import device, identity
from localdflash.base.errors import DeviceError, NoDevice, UsageError
from localdflash.loading import automatic, child, proof
from localdflash.loading.backends import load_on
from localdflash.loading.engine_choice import HostChoice
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.proof import Subject, read_verdict, write_verdict
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.pretended_gpu import STAGES, pretend, running

pytestmark = pytest.mark.checks_gpu
FakeChild = Callable[..., list[list[str]]]
NOT_CHECKED, FAILED = "it could not be checked on this GPU", "its check on this GPU failed"
DEATHS = {
    "SIGKILL": f"os.kill(os.getpid(), {int(signal.SIGKILL)})",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGABRT": "os.abort()",
    "hang": "import time; time.sleep(600)",
}


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend an RTX 4090; return the patcher that changes it."""
    pretend(monkeypatch)
    return monkeypatch


@pytest.fixture
def fake_child(monkeypatch: pytest.MonkeyPatch) -> FakeChild:
    """Return a function that makes the child print lines, then run a program; it returns the started commands."""
    started: list[list[str]] = []
    real = subprocess.Popen

    def popen(command: list[str], **rest: Any) -> Any:
        started.append(command)
        return real(command, **rest)

    monkeypatch.setattr(subprocess, "Popen", popen)

    def fake_child(*lines: dict[str, Any], then: str = "") -> list[list[str]]:
        output = "\n".join(map(json.dumps, lines))
        monkeypatch.setattr(proof, "PROGRAM", f"import os\nprint({output!r}, flush=True)\n{then}")
        return started

    return fake_child


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, files: LocalPair) -> Callable[..., tuple[Runner, str]]:
    """Return a function that checks and loads with `auto`; the CUDA engine raises `error`."""
    subject_of = identity.identify_pair

    def load(options: Options, error: BaseException | None = None) -> tuple[Runner, str]:
        def load_on(backend: Runner, _files: LocalPair, _options: Options) -> Running:
            if error and backend == "cuda":
                monkeypatch.setattr(identity, "identify_pair", lost)
                raise error
            return running()

        def lost(*_: Any) -> Any:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(identity, "identify_pair", subject_of)  # as in a process in which nothing failed
        monkeypatch.setattr(automatic, "load_on", load_on)
        monkeypatch.setattr(automatic, "gpu_is_there", lambda: False)
        monkeypatch.setattr(automatic, "choose_engine", lambda *_: HostChoice("cpu", "a test"))
        if subject := proof.find_unchecked_subject(files, options):
            proof.check(subject, files, options)
        backend, found = automatic.load_best(files, options)
        return backend, "; ".join(filter(None, found.notices))

    return load


def begins(stage: str) -> list[dict[str, Any]]:
    """Return the child's reports up to the beginning of a stage."""
    return [{"at": name, "stage": True} for name in STAGES[1 : STAGES.index(stage) + 1]]


@pytest.mark.parametrize("stage", [STAGES[0], STAGES[3]])
def test_a_failed_check_is_stored_and_another_backend_runs_the_pair(
    stage: str, load: Any, fake_child: FakeChild, options: Options, subject: Subject
) -> None:
    line = f"{stage}: it is not the reference's"
    started = fake_child(*begins(stage), {"kind": "unsound", "operation": stage, "reason": line})
    for _ in range(2):
        backend, notice = load(options)
        assert backend == "cpu"
        assert all(part in notice for part in (f"({line})", f"doctor --check-gpu {options.pair}"))
    assert len(started) == 3  # without graphs, and with everything in its simplest form
    found = read_verdict(subject.path)
    assert found
    assert (found.state, found.operation) == ("unsound", stage)


@pytest.mark.parametrize(("death", "stage"), [*zip(DEATHS, STAGES, strict=False)])
def test_a_child_that_crashes_or_hangs_fails_the_check(
    death: str, stage: str, load: Any, fake_child: FakeChild, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    if death == "hang":
        monkeypatch.setattr(proof, "TIMEOUT_SECONDS", 0.5)
    began = begins(stage) + ([{"at": "qkv of layer 3", "stage": False}] if stage == "operations" else [])
    started = fake_child(*began, then=DEATHS[death])
    backend, notice = load(options)
    assert backend == "cpu"
    assert f"{FAILED} ({began[-1]['at'] if began else stage}: " in notice
    assert ("hung" if death == "hang" else death) in notice
    assert notice.isprintable()
    assert load(options) == (backend, notice)
    assert len(started) == 3


FAULTS = {
    "exception": 'print(json.dumps({"kind": "unsound", "operation": at, "reason": f"{at}: RuntimeError: no"}))',
    "hang": DEATHS["hang"],
    "sticky error": DEATHS["SIGABRT"],
}


@pytest.mark.parametrize(("fault", "form"), [*zip(FAULTS, ("simple", "reference", "simple"), strict=True)])
def test_a_failed_operation_falls_back_to_a_simpler_form(
    fault: str,
    form: str,
    load: Any,
    fake_child: FakeChild,
    options: Options,
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pair stays on the GPU, and the notice names the fallback and its cost."""
    monkeypatch.setattr(proof, "TIMEOUT_SECONDS", 2)
    at, cost = "attention of layer 3", "attention: 0.2 ms of a step of 2.0 ms"
    program = f"""
import json, sys
at = {at!r}
if "attention:{form}" in json.loads(sys.argv[1])["cuda_ops"]:
    print(json.dumps({{"kind": "sound", "costs": [{cost!r}]}}))
else:
    print(json.dumps({{"at": at, "stage": False}}), flush=True)
    {FAULTS[fault]}
"""
    started = fake_child({"at": "operations", "stage": True}, then=program)
    backend, notice = load(options)
    assert backend == "cuda"
    assert f"CUDA engine with attention:{form}: {at}: " in notice
    assert cost in notice
    assert len(started) == (3 if form == "reference" else 2)
    assert load(options) == (backend, notice), "the choice is kept"
    found = read_verdict(subject.path)
    assert found
    assert (found.state, found.choices) == ("sound", f"attention:{form}")


@pytest.mark.parametrize(
    "call",
    [
        lambda files, options: load_on("cuda", files, options),
        Subject.of,
        lambda _files, _options: proof.list_verdicts(),
    ],
    ids=["load", "check", "list"],
)
def test_without_a_driver_nothing_of_the_engine_is_imported(
    call: Callable[..., Any], gpu: pytest.MonkeyPatch, files: LocalPair, options: Options
) -> None:
    gpu.setattr(device, "driver_present", lambda: False)
    for module in ("load_cuda", "identity"):
        gpu.setitem(sys.modules, f"localdflash.backends.cuda.{module}", None)  # importing it is an error
    with pytest.raises(NoDevice, match="no NVIDIA driver was found"):
        call(files, options)


def test_a_malformed_variable_is_refused(
    load: Any, fake_child: FakeChild, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALDFLASH_CUDA_OPS", "attention:fast")
    started = fake_child({"kind": "sound"})
    with pytest.raises(UsageError, match="LOCALDFLASH_CUDA_OPS: unknown entry 'attention:fast'"):
        load(options)
    assert not started


@pytest.mark.parametrize("then", [f"os.kill(os.getpid(), {int(signal.SIGTERM)}); input()", "print('{')"])
def test_a_child_that_is_terminated_or_breaks_is_undecided(
    then: str, load: Any, fake_child: FakeChild, options: Options
) -> None:
    started = fake_child(*begins("rows"), then=then)
    for _ in range(2):
        backend, notice = load(options)
        assert (backend, f"{NOT_CHECKED}: rows: " in notice) == ("cpu", True)
    assert len(started) == 2


def test_a_child_that_reports_progress_may_take_long(
    load: Any, fake_child: FakeChild, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "TIMEOUT_SECONDS", 0.6)
    talks = (
        'import time\nfor n in range(8): time.sleep(0.2); print(\'{"compiled": %d, "kernels": 8}\' % n, flush=True)\n'
    )
    fake_child(*begins("graphs"), then=f"{talks}print({json.dumps({'kind': 'sound'})!r})")
    heard = list[tuple[int, int]]()
    assert load(replace(options, compiling=lambda *counts: heard.append(counts))) == ("cuda", "")
    assert heard == [(n, 8) for n in range(8)]


def test_a_check_that_crashed_its_process_is_not_repeated(
    load: Any, fake_child: FakeChild, options: Options, subject: Subject
) -> None:
    """As after a crash of the machine or the daemon."""
    started = fake_child({"kind": "sound"})
    write_verdict(subject.path, subject.verdict("begun", "graphs"))
    backend, notice = load(options)
    assert (backend, "(graphs); run `localdflash doctor" in notice) == ("cpu", True)
    assert not started


def test_another_backend_runs_the_pair_while_another_process_checks(
    load: Any, fake_child: FakeChild, options: Options, subject: Subject, files: LocalPair
) -> None:
    code = (
        "import sys; from pathlib import Path; from localdflash.base.system.file_lock import process_lock\n"
        "with process_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    write_verdict(subject.path, subject.verdict("begun", "loading"))
    command = [sys.executable, "-P", "-c", code, str(subject.path.with_suffix(".lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        started = fake_child({"kind": "sound"})
        backend, notice = load(options)
        assert proof.check(subject, files, options) is None
        other.communicate()
    assert (backend, "another process is checking it on this GPU" in notice) == ("cpu", True)
    assert started == [command]


def test_a_cancelled_check_leaves_no_process_and_no_verdict(
    files: LocalPair, options: Options, subject: Subject, fake_child: FakeChild, tmp_path: Path
) -> None:
    """As when the daemon ends during a background check."""
    cancelled, pid = threading.Event(), tmp_path / "pid"
    fake_child(*begins("rows"), then=f"open({str(pid)!r}, 'w').write(str(os.getpid()))\nimport time; time.sleep(600)")

    def cancel() -> None:
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(child.ChildCancellation):
        proof.check(subject, files, options, cancelled)
    thread.join()
    assert not psutil.pid_exists(int(pid.read_text()))
    assert read_verdict(subject.path) is None


def test_ctrl_c_stores_no_verdict(
    files: LocalPair, options: Options, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        assert read_verdict(subject.path)
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proof.check(subject, files, options)
    assert read_verdict(subject.path) is None


# Loading after a good check


def test_a_gpu_lost_while_loading_ends_the_process_once(load: Any, fake_child: FakeChild, options: Options) -> None:
    """The process that the supervisor starts next uses another backend."""
    started = fake_child({"kind": "sound"})
    with pytest.raises(DeviceError) as error:
        load(options, DeviceError("the GPU failed (CUDA error: an illegal memory access)"))
    assert error.value.exit_code == 5
    backend, notice = load(options)
    assert (backend, f"{FAILED} (the GPU failed (CUDA error: an illegal" in notice) == ("cpu", True)
    assert len(started) == 1


def test_without_any_verdict_auto_does_not_identify_the_gpu(
    options: Options, files: LocalPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would import torch before the first answer."""
    monkeypatch.setattr(identity, "identify_pair", lambda *_: pytest.fail("identified"))
    assert proof.is_first_check(options)
    assert proof.engine_status(files, options) == ""
    with pytest.raises(NoDevice, match="not checked on this GPU yet"):
        proof.require_trusted(files, options)
    assert not proof.is_first_check(replace(options, backend="cuda"))


# --backend cuda


def test_a_requested_engine_runs_unchecked_with_a_notice(
    options: Options, fake_child: FakeChild, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_llama_cpp(backend: Runner, files: LocalPair, options: Options) -> Running:
        return load_on("llama.cpp", files, replace(options, device="cpu", rows="fast", context=64))

    monkeypatch.setattr("localdflash.loading.load_pair.load_on", on_llama_cpp)
    monkeypatch.setattr(automatic, "load_on", on_llama_cpp)
    options = replace(options, backend="cuda")
    started = fake_child({"kind": "sound"})
    with LoadedPair(options) as loaded:
        assert loaded.gpu_check.startswith("not checked")
    for verdict, expected in (
        (None, "not checked on this GPU yet"),
        (subject.verdict("unsound", "head", "head: NaN"), f"{FAILED} (head: NaN)"),
        (subject.verdict("begun", "rows"), "(rows)"),
        (subject.verdict("sound"), ""),
    ):
        if verdict:
            write_verdict(subject.path, verdict)
        with LoadedPair(options) as loaded:
            assert expected in loaded.notice
            assert "\n" not in loaded.notice
            assert loaded.notice.startswith("--backend cuda: ") == (f"--check-gpu {options.pair}`" in loaded.notice)
    assert (loaded.notice, loaded.gpu_check, loaded.backend) == ("", "sound", "cuda")
    assert not started


def test_a_verdict_depends_on_machine_libraries_and_kernel_options(
    files: LocalPair, options: Options, subject: Subject, gpu: pytest.MonkeyPatch
) -> None:
    def key(**changes: Any) -> str:
        return Subject.of(files, replace(options, **changes)).path.name

    assert key() == key(context=256) == key(threads=2) == subject.path.name
    assert len({key(), key(kv="int8"), key(draft=False), key(native_fp4=True)}) == 4
    for what, value in (
        ("torch.__version__", "9.9"),
        ("triton.__version__", "9.9"),
        ("torch.cuda.get_device_name", lambda _: "RTX 5090"),
        ("localdflash.backends.cuda.identity.driver_version", lambda: "590.1"),
        ("localdflash.backends.cuda.identity.__version__", "99.0"),
        ("localdflash.backends.cuda.identity.hash_kernels", lambda: "another"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(what, value)
            assert key() != subject.path.name, what
    gpu.setattr("localdflash.backends.cuda.gpus.Gpu.uuid", property(lambda _self: "GPU-another-card-of-its-kind"))
    assert key() == subject.path.name


def test_files_of_the_same_shapes_share_a_verdict(
    files: LocalPair, options: Options, subject: Subject, tiny_pair: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"  # as a fine-tune: other numbers in the same shapes
    copy.write_bytes((tiny_pair / "target.gguf").read_bytes()[:-64] + bytes(64))
    assert Subject.of(replace(files, target=copy), options).path == subject.path
    assert Subject.of(replace(files, drafter_safetensors=None), options).path != subject.path
