"""First-load check of the CUDA engine for a pair on a machine, before `auto` uses it.

A child process loads the pair and runs the checks of `backends/cuda/proof`, since wrong kernels may crash or hang it.
The daemon starts the child while another backend runs the pair; `--backend cuda` only warns. Verdict files are written
before a check begins. The state "begun" in a file whose lock no process holds means that the check crashed its process.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Literal, Self

from localdflash.backends.cuda import device
from localdflash.backends.cuda.choices import VARIABLE, Choices
from localdflash.base.errors import DeviceError, LocaldflashError, NoDevice, OutOfMemory
from localdflash.base.files.json_file import read_record, write_json
from localdflash.base.files.paths import cache_folder, create_private
from localdflash.base.system.file_lock import process_lock
from localdflash.base.system.process import ending_signal
from localdflash.loading import child
from localdflash.loading.backends import call_cuda
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from localdflash.models.weights.split import count_bytes

Watch = Callable[[str], None]
State = Literal["begun", "sound", "unsound", "undecided"]  # undecided: the check could not run

METHOD_VERSION = 2  # version of the check; verdicts of other versions do not count
KERNEL_OPTIONS = ("drafter", "draft", "kv", "drafter_bits", "native_fp4")
MAX_FILE_BYTES = 1 << 14  # maximum size of a verdict's file
TIMEOUT_SECONDS = 300.0  # longest time between two reports: one kernel to compile, or one reference on the CPU
BYTES_PER_SECOND = 10_000_000  # added to the timeout for slow disks
MAX_CONTEXT = 9216  # tokens for the checks; above 2,048 and 8,192, attention runs other kernels
MAX_REASON_CHARS = 1000
SOUND = "sound"
PROGRAM = "from localdflash.loading.proof import main; main()"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n\n\ndef sub(a, b):\n    return"
ENVIRONMENT_ERRORS = (LocaldflashError, ImportError, OSError, SubprocessError, MemoryError)  # not caused by the kernels
EXTERNAL_SIGNALS = frozenset({"SIGINT", "SIGTERM", "SIGHUP"})  # sent by users and the system


@dataclass(frozen=True)
class Verdict:
    """Result of a check. `operation` failed, or was begun last; `reason` is one line.

    `choices` are the fallbacks that the engine must run with; each line of `degraded` is a reason or cost of a choice.
    """

    state: State
    pair: str
    machine: list[str]
    day: str
    options: dict[str, Any]  # the fields `KERNEL_OPTIONS` of `Options`
    operation: str = ""
    reason: str = ""
    choices: str = ""
    degraded: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """Pair on this machine, and the file of its verdict."""

    pair: str
    machine: tuple[str, ...]
    options: dict[str, Any]
    path: Path

    @classmethod
    def of(cls, files: LocalPair, options: Options) -> Self:
        """Identify a pair on this machine; NoDevice or ModelError if the engine cannot run it here."""

        def identify() -> tuple[tuple[str, ...], tuple[str, ...]]:
            from localdflash.backends.cuda.identity import identify_pair

            return identify_pair(files, options)

        machine, shapes = call_cuda(identify)
        key = hashlib.sha256(repr((METHOD_VERSION, machine, shapes)).encode()).hexdigest()[:32]
        kernel_options = {name: getattr(options, name) for name in KERNEL_OPTIONS}
        return cls(options.pair, machine, kernel_options, _folder() / f"{key}.json")

    def verdict(self, state: State, operation: str = "", reason: str = "") -> Verdict:
        """Return a verdict with today's date."""
        today = date.today().isoformat()
        return Verdict(state, self.pair, list(self.machine), today, self.options, operation, reason)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the check for this process; TimeoutError if another process holds it."""
        create_private(self.path.parent)
        return process_lock(self.path.with_suffix(".lock"))

    def why_not(self) -> str:
        """Return why the engine is not trusted with the pair, with a remedy; "" if it is trusted."""
        again = f"run `localdflash doctor --check-gpu {self.pair}`"
        verdict = read_verdict(self.path)
        if verdict is None:
            return not_checked(self.pair)
        match verdict.state:
            case "sound":
                return ""
            case "unsound":
                return f"its check on this GPU failed ({verdict.reason}); {again} to repeat it"
            case "undecided":
                return f"it could not be checked on this GPU: {verdict.reason}"
            case "begun":
                if self._is_held():
                    return "another process is checking it on this GPU"
                return f"its last check crashed its process ({verdict.operation}); {again} to repeat it"

    def _is_held(self) -> bool:
        with suppress(OSError, LocaldflashError):
            try:
                with self.lock():
                    return False
            except TimeoutError:
                return True
        return False


def not_checked(pair: str) -> str:
    """Return why the engine is not trusted with a pair that was never checked, with the remedy."""
    return f"not checked on this GPU yet; run `localdflash doctor --check-gpu {pair}`"


def _folder() -> Path:
    return cache_folder() / "gpu-checks"


def list_verdicts() -> list[Verdict]:
    """Return the verdicts for this machine's GPUs, driver and libraries, sorted by pair; NoDevice without a GPU."""

    def identify() -> list[tuple[str, ...]]:
        from localdflash.backends.cuda.identity import list_machines

        return list_machines()

    machines_here = [list(machine) for machine in call_cuda(identify)]
    verdicts = [verdict for path in _folder().glob("*.json") if (verdict := read_verdict(path))]
    return sorted(
        (verdict for verdict in verdicts if verdict.machine in machines_here), key=lambda verdict: verdict.pair
    )


def read_verdict(path: Path) -> Verdict | None:
    """Return the stored verdict, None if there is no readable one."""
    return read_record(path, MAX_FILE_BYTES, Verdict)


def write_verdict(path: Path, verdict: Verdict) -> None:
    """Store a verdict, with fsync, since the check may crash the machine; LocaldflashError if it cannot be written."""
    try:
        write_json(path, asdict(verdict), sync=True)
    except OSError as error:
        raise LocaldflashError(
            f"{path}: cannot be written ({error.strerror}); set LOCALDFLASH_HOME to another folder"
        ) from error


def auto_tries_cuda(options: Options) -> bool:
    """Return whether `auto` tries the CUDA engine; GPU layers, or a GPU of another kind, select llama.cpp."""
    return options.gpu_layers < 0 and device.means_gpu(options.device)


def is_first_check(options: Options) -> bool:
    """Return whether `auto` would use the CUDA engine, but no pair was ever checked here; imports no torch.

    Then the first answer need not wait for the import of torch, which can take ten seconds.
    """
    if options.backend != "auto" or not auto_tries_cuda(options):
        return False
    try:
        device.require_installed()
    except NoDevice:  # loading reports it
        return False
    return not any(_folder().glob("*.json"))


def find_unchecked_subject(files: LocalPair, options: Options) -> Subject | None:
    """Return the subject of a check that `auto` still needs to use the engine with a pair, else None."""
    if options.backend != "auto" or not auto_tries_cuda(options):
        return None
    with suppress(LocaldflashError):  # `require_trusted` raises it
        subject = Subject.of(files, options)
        verdict = read_verdict(subject.path)
        return subject if verdict is None or verdict.state == "undecided" else None
    return None


def check_first(options: Options) -> None:
    """Check the engine with the pair of the options before the pair is loaded, if `auto` needs the check."""
    files = local_files(load_registry().resolve(options.pair, options.drafter or None))
    if subject := find_unchecked_subject(files, options):
        check(subject, files, options)


def require_trusted(files: LocalPair, options: Options) -> tuple[Subject, Verdict]:
    """Return the subject and the verdict of a check that passed; NoDevice if there is no such check.

    UsageError if LOCALDFLASH_CUDA_OPS is malformed.
    """
    Choices.parse(os.environ.get(VARIABLE, ""))
    if is_first_check(options):
        raise NoDevice(not_checked(options.pair))
    subject = Subject.of(files, options)
    objection, verdict = subject.why_not(), read_verdict(subject.path)
    if objection or verdict is None:
        raise NoDevice(objection)
    return subject, verdict


def engine_status(files: LocalPair, options: Options) -> str:
    """Return the engine's status with a pair: `SOUND`, the reason against it, or "" if it cannot run the pair.

    Also "" if no pair was ever checked here.
    """
    if is_first_check(options):
        return ""
    with suppress(LocaldflashError):
        return Subject.of(files, options).why_not() or SOUND
    return ""


def record_lost_gpu(subject: Subject, error: DeviceError) -> None:
    """Store that the GPU was lost while a checked pair was loaded, so that the next process does not try it."""
    with suppress(LocaldflashError):
        write_verdict(subject.path, subject.verdict("unsound", "loading", str(error)[:MAX_REASON_CHARS]))


def check(
    subject: Subject, files: LocalPair, options: Options, cancelled: threading.Event | None = None
) -> Verdict | None:
    """Check the engine with a pair and store the verdict; None if another process is checking it.

    Setting `cancelled` ends the check without a verdict and raises `child.ChildCancellation`.
    """
    try:
        with subject.lock():
            if missing := device.missing_tools():
                verdict = subject.verdict("undecided", "compiling", missing)
            else:
                verdict = _check_with_fallbacks(subject, files, options, cancelled)
            write_verdict(subject.path, verdict)
            return verdict
    except TimeoutError:
        return None
    except OSError as error:
        raise LocaldflashError(
            f"{subject.path.parent}: cannot be locked ({error.strerror}); set LOCALDFLASH_HOME to another folder"
        ) from error


def _check_with_fallbacks(
    subject: Subject, files: LocalPair, options: Options, cancelled: threading.Event | None
) -> Verdict:
    """Check the pair, with fallbacks for failed operations, until it is sound or no fallback is left."""
    choices, reasons = Choices.parse(os.environ.get(VARIABLE, "")), list[str]()
    while True:
        verdict = _run_check(subject, files, replace(options, cuda_ops=str(choices)), cancelled)
        if verdict.state == "sound":
            return replace(verdict, choices=str(choices), degraded=[*reasons, *verdict.degraded])
        fallback = choices.fallback(verdict.operation) if verdict.state == "unsound" else None
        if fallback is None:
            return verdict
        choices = fallback
        reasons.append(verdict.reason)


def _run_check(subject: Subject, files: LocalPair, options: Options, cancelled: threading.Event | None) -> Verdict:
    """Run the child; keep the current stage in the verdict's file, in case this process is killed."""
    step = "loading"

    def on_report(report: child.Report) -> None:
        nonlocal step
        step = str(report["at"])
        if report["stage"]:
            write_verdict(subject.path, subject.verdict("begun", step))

    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    size = sum(count_bytes(path) for path in (files.target, *drafters) if path)
    limit = TIMEOUT_SECONDS + size / BYTES_PER_SECOND
    write_verdict(subject.path, subject.verdict("begun", step))
    try:
        child_exit = child.run(PROGRAM, options, limit, on_report, renewed=True, cancelled=cancelled)
    except OSError as error:
        return subject.verdict("undecided", step, f"no process could be started: {error.strerror}")
    except BaseException:  # Ctrl-C or cancelled: the child was killed without a verdict
        subject.path.unlink(missing_ok=True)
        raise
    return _verdict_of_exit(subject, child_exit, step, limit)


def _verdict_of_exit(subject: Subject, child_exit: child.ChildExit, step: str, limit: float) -> Verdict:
    """Return the verdict for a child that ended during the stage or operation `step`."""
    if child_exit.report is not None:
        kind, operation, reason = (str(child_exit.report.get(name, "")) for name in ("kind", "operation", "reason"))
        if kind == "sound":
            costs = child_exit.report.get("costs", ())
            return replace(subject.verdict("sound"), degraded=[str(line) for line in costs])
        state: State = "unsound" if kind == "unsound" else "undecided"
        return subject.verdict(state, operation or step, reason[:MAX_REASON_CHARS])
    if child_exit.is_timeout:
        return subject.verdict("unsound", step, f"{step}: it hung and was killed after {limit:.0f} s")
    if name := ending_signal(child_exit.code):
        state = "undecided" if name in EXTERNAL_SIGNALS else "unsound"
        return subject.verdict(state, step, f"{step}: the process was ended by {name} ({child_exit.stderr_line})")
    return subject.verdict("undecided", step, f"{step}: the process exited early ({child_exit.stderr_line})")


def main() -> None:
    """Run in the child: load the pair of the options in the first argument, check it, report the result."""
    options, report = child.begin()
    if sys.platform != "win32":
        os.nice(10)  # another backend may be answering
    step = "loading"

    def begin(stage: str) -> None:
        nonlocal step
        step = stage
        report(at=step, stage=True)

    try:
        report(**_check_pair(options, begin, lambda operation: report(at=operation, stage=False)))
    except Exception as error:
        reason = str(error) if isinstance(error, LocaldflashError) else f"{step}: {device.describe_error(error)}"
        report(kind="undecided" if _is_environment(error, step) else "unsound", operation=step, reason=reason)


def _is_environment(error: Exception, step: str) -> bool:
    """Return whether an error has a cause outside the engine: a lack of memory, a broken library or compiler."""
    if isinstance(error, DeviceError):
        return False
    is_full = "out of memory" in str(error)  # the wording of torch, Triton and graphs
    has_no_driver = step == "loading" and isinstance(error, AssertionError)  # Triton's, if it finds no libcuda
    return is_full or has_no_driver or isinstance(error, ENVIRONMENT_ERRORS)


def _check_pair(options: Options, begin: Watch, watch: Watch) -> dict[str, Any]:
    """Load and check the pair; return the child's last report."""
    from localdflash.backends.cuda.cuda_pair import CudaPair
    from localdflash.backends.cuda.proof.costs import costs
    from localdflash.backends.cuda.proof.operations import CheckError
    from localdflash.backends.cuda.proof.stages import stages

    files = local_files(load_registry().resolve(options.pair, options.drafter or None))
    loading = True

    def report_launch(operation: str) -> None:
        if loading:
            watch(f"loading, {operation}")

    with closing(_load_for_checks(files, options, report_launch)) as running:
        loading = False
        assert isinstance(running.pair, CudaPair)
        choices = Choices.parse(options.cuda_ops)
        with device.device_context(running.pair.stepper.device):
            try:
                for stage, run in stages(running.pair, _prompt(files, running.context), watch):
                    begin(stage)
                    run()
            except CheckError as error:
                return {"kind": "unsound", "operation": error.operation, "reason": str(error)}
            return {"kind": "sound", "costs": list(costs(running.pair, choices))}


def _load_for_checks(files: LocalPair, options: Options, report_launch: Watch) -> Running:
    """Load the pair with the context for the checks, or with less if that does not fit; report each launch."""
    from localdflash.backends.cuda.cuda_sizes import CudaSizes
    from localdflash.backends.cuda.load_cuda import load
    from localdflash.backends.cuda.ops import KERNELS
    from localdflash.backends.cuda.proof.operations import report_launches

    trained, ops = CudaSizes(files.target, None).trained, report_launches(KERNELS, report_launch)
    try:
        return load(files, replace(options, context=min(trained, MAX_CONTEXT)), ops)
    except OutOfMemory:
        return load(files, replace(options, context=0), ops)


def _prompt(files: LocalPair, context: int) -> list[int]:
    """Return the token ids of `PROMPT`, at most a quarter of the context."""
    from localdflash.text.tokenizer import Tokenizer

    return Tokenizer.load(files.target).encode(PROMPT)[: context // 4]
