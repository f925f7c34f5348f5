"""First-load check of the CUDA engine: before `auto` uses it for a pair on a machine, a child process checks it once.

The child loads the pair and runs every check of `backends/cuda/proof`. CUDA errors are permanent for a process, and
wrong kernels may crash or hang it, which affects only the child. The verdict is stored (see `verdict`). Until it is
good, another backend runs the pair. `--backend cuda` runs anyway, with a warning.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from subprocess import SubprocessError

from filelock import Timeout

from localdflash.backends.cuda import device
from localdflash.base.errors import DeviceFailed, LocaldflashError, NoDevice, OutOfMemory
from localdflash.base.system.process import ending_signal
from localdflash.loading import child
from localdflash.loading.verdict import State, Subject, Verdict, keep, recall
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from localdflash.models.weights.split import size_of

Watch = Callable[[str], None]

TIMEOUT_SECONDS = 300.0  # without a report: one kernel to compile, or one reference on the CPU
BYTES_PER_SECOND = 10_000_000  # added to the timeout for slow disks
MAX_CONTEXT = 4096  # tokens that are loaded for the checks
MAX_REASON_CHARS = 1000
SOUND = "sound"
PROGRAM = "from localdflash.loading.proof import main; main()"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n\n\ndef sub(a, b):\n    return"
ENVIRONMENT_ERRORS = (LocaldflashError, ImportError, OSError, SubprocessError, MemoryError)  # not the kernels' fault
EXTERNAL_SIGNALS = frozenset({"SIGINT", "SIGTERM", "SIGHUP"})  # sent by people and systems


def is_tried_on(options: Options) -> bool:
    """Return whether `auto` tries the CUDA engine; GPU layers, or a GPU that it does not know, select llama.cpp."""
    return options.gpu_layers < 0 and device.means_gpu(options.device)


def check_first(files: LocalPair, options: Options) -> None:
    """Check the engine with a pair that `auto` would load on it, unless there is a verdict."""
    if options.backend != "auto" or not is_tried_on(options):
        return
    with suppress(LocaldflashError):  # `require_trusted` raises it later
        subject = Subject.of(files, options)
        verdict = recall(subject.place)
        if verdict is None or verdict.state == "undecided":
            check(subject, files, options)


def require_trusted(files: LocalPair, options: Options) -> Subject:
    """Return the subject of a check that passed; NoDevice if there is none."""
    subject = Subject.of(files, options)
    if doubt := subject.why_not():
        raise NoDevice(doubt)
    return subject


def engine_status(files: LocalPair, options: Options) -> str:
    """Return the engine's status with a pair: `SOUND`, the reason against it, or "" if it cannot run the pair."""
    with suppress(LocaldflashError):
        return Subject.of(files, options).why_not() or SOUND
    return ""


def record_lost_gpu(subject: Subject, error: DeviceFailed) -> None:
    """Store that the GPU was lost while a checked pair was loaded, so that the next process does not try it."""
    with suppress(LocaldflashError):
        keep(subject.place, subject.verdict("unsound", "loading", str(error)[:MAX_REASON_CHARS]))


def check(subject: Subject, files: LocalPair, options: Options) -> Verdict | None:
    """Check the engine with a pair and store the verdict; None if another process is checking it."""
    try:
        with subject.lock():
            missing = device.missing_tools()
            found = subject.verdict("undecided", "compiling", missing) if missing else _checked(subject, files, options)
            keep(subject.place, found)
            return found
    except Timeout:
        return None
    except OSError as error:
        raise LocaldflashError(
            f"{subject.place.parent}: cannot be locked ({error.strerror}); set LOCALDFLASH_HOME to another folder"
        ) from error


def _checked(subject: Subject, files: LocalPair, options: Options) -> Verdict:
    """Run the child; the verdict's file holds the current stage, in case this process is killed."""
    at = "loading"

    def on_report(report: child.Report) -> None:
        nonlocal at
        at = str(report["at"])
        if report["stage"]:
            keep(subject.place, subject.verdict("begun", at))

    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    size = sum(size_of(path) for path in (files.target, *drafters) if path)
    limit = TIMEOUT_SECONDS + size / BYTES_PER_SECOND
    keep(subject.place, subject.verdict("begun", at))
    try:
        ended = child.run(PROGRAM, options, limit, on_report, renewed=True)
    except OSError as error:
        return subject.verdict("undecided", at, f"no process could be started: {error.strerror}")
    except BaseException:  # Ctrl-C: the child was killed without a verdict
        subject.place.unlink(missing_ok=True)
        raise
    return _verdict(subject, ended, at, limit)


def _verdict(subject: Subject, ended: child.ChildExit, at: str, limit: float) -> Verdict:
    """Return the verdict for a child that ended during the stage or operation `at`."""
    if ended.report is not None:
        kind, operation, reason = (str(ended.report.get(name, "")) for name in ("kind", "operation", "said"))
        if kind == "sound":
            return subject.verdict("sound")
        state: State = "unsound" if kind == "unsound" else "undecided"
        return subject.verdict(state, operation or at, reason[:MAX_REASON_CHARS])
    if ended.is_timeout:
        return subject.verdict("unsound", at, f"{at}: it hung and was killed after {limit:.0f} s")
    if name := ending_signal(ended.code):
        state = "undecided" if name in EXTERNAL_SIGNALS else "unsound"
        return subject.verdict(state, at, f"{at}: the process was ended by {name} ({ended.stderr_line})")
    return subject.verdict("undecided", at, f"{at}: the process exited early ({ended.stderr_line})")


def main() -> None:
    """Run in the child: load the pair of the options in the first argument, check it, report the result."""
    options, report = child.begin()
    at = "loading"

    def begin(stage: str) -> None:
        nonlocal at
        at = stage
        report(at=at, stage=True)

    try:
        report(**_check_pair(options, begin, lambda operation: report(at=operation, stage=False)))
    except Exception as error:
        said = str(error) if isinstance(error, LocaldflashError) else f"{at}: {device.told(error)}"
        report(kind="undecided" if _is_environment(error, at) else "unsound", operation=at, said=said)


def _is_environment(error: Exception, at: str) -> bool:
    """Return whether an error is not the engine's fault: a lack of memory, a broken library or compiler."""
    if isinstance(error, DeviceFailed):
        return False
    is_full = "out of memory" in str(error)  # the wording of torch, Triton and graphs
    has_no_driver = at == "loading" and isinstance(error, AssertionError)  # Triton's, if it finds no libcuda
    return is_full or has_no_driver or isinstance(error, ENVIRONMENT_ERRORS)


def _check_pair(options: Options, begin: Watch, watch: Watch) -> dict[str, str]:
    """Load and check the pair; return the child's last report."""
    from localdflash.backends.cuda.cuda_pair import CudaPair
    from localdflash.backends.cuda.proof.operations import Unsound
    from localdflash.backends.cuda.proof.stages import stages

    files = local_files(load_registry().resolve(options.pair, options.drafter or None))
    loading = True

    def launched(operation: str) -> None:
        if loading:
            watch(f"loading, {operation}")

    with closing(_loaded(files, options, launched)) as running:
        loading = False
        assert isinstance(running.pair, CudaPair)
        try:
            for stage, run in stages(running.pair, _prompt(files, running.context), watch):
                begin(stage)
                run()
        except Unsound as error:
            return {"kind": "unsound", "operation": error.operation, "said": str(error)}
    return {"kind": "sound"}


def _loaded(files: LocalPair, options: Options, launched: Watch) -> Running:
    """Load the pair with the context for the checks, or with less if that does not fit; report each launch."""
    from localdflash.backends.cuda.cuda_sizes import CudaSizes
    from localdflash.backends.cuda.load_cuda import load
    from localdflash.backends.cuda.ops import KERNELS
    from localdflash.backends.cuda.proof.operations import telling

    trained, ops = CudaSizes(files.target, None).trained, telling(KERNELS, launched)
    try:
        return load(files, replace(options, context=min(trained, MAX_CONTEXT)), ops)
    except OutOfMemory:
        return load(files, replace(options, context=0), ops)


def _prompt(files: LocalPair, context: int) -> list[int]:
    """Return the ids of some code that leave room for an answer."""
    from localdflash.text.tokenizer import Tokenizer

    return Tokenizer.load(files.target).encode(PROMPT)[: context // 4]
