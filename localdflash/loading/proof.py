"""Trust, but verify: before `auto` gives a pair to the CUDA engine on a machine, a child checks it there, once.

The child loads the pair and runs every check of `backends/cuda/proof`. Errors of CUDA stick to a process, and kernels
that are wrong may end or hang it: that is the child's. What it finds is kept (see `verdict`), and until that is good
another backend runs the pair. `--backend cuda` is not held up, but told.
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
from localdflash.loading.verdict import Subject, Verdict, keep, recall
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from localdflash.models.weights.split import size_of

Watch = Callable[[str], None]

PATIENCE = 300.0  # seconds without a word: one kernel to compile, or one reference on the processor
RATE = 10_000_000  # bytes for each second more: a disk may be slow
CONTEXT = 4096  # tokens that are loaded for the checks
LONGEST = 1000  # characters of what is kept
SOUND = "sound"
PROGRAM = "from localdflash.loading.proof import main; main()"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n\n\ndef sub(a, b):\n    return"
ELSEWHERE = (LocaldflashError, ImportError, OSError, SubprocessError, MemoryError)  # these say nothing of kernels
OTHERS = frozenset({"SIGINT", "SIGTERM", "SIGHUP"})  # nor do signals that people and systems send


def is_tried_on(options: Options) -> bool:
    """Whether `auto` would try the CUDA engine here: layers for a GPU, or one that it does not know, mean llama.cpp."""
    return options.gpu_layers < 0 and device.means_gpu(options.device)


def check_first(files: LocalPair, options: Options) -> None:
    """Have the engine checked with a pair that `auto` would give it, unless there is a verdict."""
    if options.backend != "auto" or not is_tried_on(options):
        return
    with suppress(LocaldflashError):  # which `trusted` tells
        subject = Subject.of(files, options)
        verdict = recall(subject.place)
        if verdict is None or verdict.state == "undecided":
            check(subject, files, options)


def trusted(files: LocalPair, options: Options) -> Subject:
    """A pair whose check here was good; NoDevice says why the engine is not to be trusted with it."""
    subject = Subject.of(files, options)
    if doubt := subject.why_not():
        raise NoDevice(doubt)
    return subject


def standing(files: LocalPair, options: Options) -> str:
    """What is known of the engine with a pair here: `SOUND`, why it is not, or "" where it cannot run the pair."""
    with suppress(LocaldflashError):
        return Subject.of(files, options).why_not() or SOUND
    return ""


def lost(subject: Subject, error: DeviceFailed) -> None:
    """Keep it that a pair whose check was good lost the GPU while it was loaded: the next process is not to try."""
    with suppress(LocaldflashError):
        keep(subject.place, subject.verdict("unsound", "loading", str(error)[:LONGEST]))


def check(subject: Subject, files: LocalPair, options: Options) -> Verdict | None:
    """Check the engine with a pair and keep what is found; None if another process is at it."""
    try:
        with subject.lock():
            missing = device.missing_tools()
            found = subject.verdict("undecided", "compiling", missing) if missing else _checked(subject, files, options)
            keep(subject.place, found)
            return found
    except Timeout:
        return None
    except OSError as error:
        raise LocaldflashError(f"{subject.place.parent}: cannot be locked: {error.strerror}") from error


def _checked(subject: Subject, files: LocalPair, options: Options) -> Verdict:
    """Run the child; the file says how far it is, for whoever comes after the end of this process."""
    at = "loading"

    def hear(told: child.Told) -> None:
        nonlocal at
        at = str(told["at"])
        if told["stage"]:
            keep(subject.place, subject.verdict("begun", at))

    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    size = sum(size_of(path) for path in (files.target, *drafters) if path)
    limit = PATIENCE + size / RATE
    keep(subject.place, subject.verdict("begun", at))
    try:
        ended = child.run(PROGRAM, options, limit, hear, renewed=True)
    except OSError as error:
        return subject.verdict("undecided", at, f"there is no process for it: {error.strerror}")
    except BaseException:  # Ctrl-C: the child is gone, and nothing was found
        subject.place.unlink(missing_ok=True)
        raise
    return _verdict(subject, ended, at, limit)


def _verdict(subject: Subject, ended: child.Ended, at: str, limit: float) -> Verdict:
    """What the end of a child means that had begun with `at`."""
    if ended.told is not None:
        told = {name: str(ended.told.get(name, "")) for name in ("kind", "operation", "said")}
        operation = told["operation"] or at
        match told["kind"]:
            case "sound":
                return subject.verdict("sound")
            case "unsound":
                return subject.verdict("unsound", operation, told["said"][:LONGEST])
        return subject.verdict("undecided", operation, told["said"][:LONGEST])
    if ended.expired:
        return subject.verdict("unsound", at, f"{at}: it hung for {limit:.0f} s and was ended")
    if name := ending_signal(ended.code):
        return subject.verdict(
            "undecided" if name in OTHERS else "unsound", at, f"{at}: {name} ended the process ({ended.words})"
        )
    return subject.verdict("undecided", at, f"{at}: the process ended by itself ({ended.words})")


def main() -> None:
    """The child: load the pair of the options in the first argument, check it, say how it went."""
    options, tell = child.begin()
    at = "loading"

    def begin(stage: str) -> None:
        nonlocal at
        at = stage
        tell(at=at, stage=True)

    try:
        tell(**_found(options, begin, lambda place: tell(at=place, stage=False)))
    except Exception as error:
        said = str(error) if isinstance(error, LocaldflashError) else f"{at}: {device.told(error)}"
        tell(kind="undecided" if _is_elsewhere(error, at) else "unsound", operation=at, said=said)


def _is_elsewhere(error: Exception, at: str) -> bool:
    """Whether an error says nothing of the engine: memory that others have, a library or a compiler that is broken."""
    if isinstance(error, DeviceFailed):
        return False
    full = "out of memory" in str(error)  # as torch, Triton and graphs say it
    no_driver = at == "loading" and isinstance(error, AssertionError)  # Triton's, where it finds no libcuda
    return full or no_driver or isinstance(error, ELSEWHERE)


def _found(options: Options, begin: Watch, watch: Watch) -> dict[str, str]:
    """The child's last line, if nothing breaks."""
    from localdflash.backends.cuda.cuda_pair import CudaPair
    from localdflash.backends.cuda.proof.stages import stages
    from localdflash.backends.cuda.proof.tolerance import Unsound

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
    """The pair with the context that the checks want, with what fits where that is less; `launched` hears what runs."""
    from localdflash.backends.cuda.cuda_sizes import CudaSizes
    from localdflash.backends.cuda.load_cuda import load
    from localdflash.backends.cuda.ops import KERNELS
    from localdflash.backends.cuda.proof.operations import telling

    trained, ops = CudaSizes(files.target, None).trained, telling(KERNELS, launched)
    try:
        return load(files, replace(options, context=min(trained, CONTEXT)), ops)
    except OutOfMemory:
        return load(files, replace(options, context=0), ops)


def _prompt(files: LocalPair, context: int) -> list[int]:
    """Ids of some code, that leave room for an answer."""
    from localdflash.text.tokenizer import Tokenizer

    return Tokenizer.load(files.target).encode(PROMPT)[: context // 4]
