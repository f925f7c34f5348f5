"""The first load of a file, in a process of its own: what C code makes of the file ends that process, not the engine.

A header may pass every check and the model still trip an assertion of llama.cpp, or keep it busy for good. So whoever
loads a pair with a new or changed file has a child load it first, in the way that is asked for, and write a few tokens,
within a time that grows with the files. What the child measures (`timing`, `certified`, packed files) is kept, so that
the load that follows measures nothing again. The verdict is kept under the files' identity: a changed file, another
backend or another version is tried anew.

Files whose bytes are known are not tried. What the child refuses in good order is raised here.
"""

import hashlib
import json
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from localdflash.backends.cuda.device import driver_present
from localdflash.base import errors
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.files.paths import cache_folder, create_private
from localdflash.base.machine import gpu_watch
from localdflash.base.system.process import ending_signal
from localdflash.loading import child
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import is_known
from localdflash.models.weights.gguf import check_header
from localdflash.models.weights.split import files_of, size_of

METHOD = 1  # of trying: what another one found is tried again
PATIENCE = 60.0  # seconds
COMPILING = 600.0  # seconds more where there is a GPU that kernels are compiled for
RATE = 10_000_000  # bytes for each second more: a disk may be slow, and a first load measures
LONGEST = 4096  # bytes of a verdict
PROGRAM = "from localdflash.loading.trial_child import main; main()"
FAULTS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
AGAIN = "download or convert it again; after `touch` it is tried again"


def try_first(files: LocalPair, options: Options) -> None:
    """Have a pair's files loaded by a child, if they have no good verdict yet.

    ModelError for a file that ends or hangs the child; else the error that the child's load raised.
    """
    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    paths = [path for path in (files.target, *drafters) if path]
    if all(map(is_known, paths)):
        return
    for path in paths:
        if path.suffix != ".safetensors":
            check_header(path)
    key = hashlib.sha256(_key(paths, options).encode()).hexdigest()[:32]
    place = cache_folder() / "trials" / f"{key}.json"
    said = _recall(place)
    if said is None:
        said = tried(paths, options)
        if said is not None:
            _keep(place, said)
    if said:
        raise ModelError(said)


def _key(paths: list[Path], options: Options) -> str:
    """What a verdict is about."""
    stats = [(str(part), part.stat()) for path in paths for part in files_of(path)]
    files = [(name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in stats]
    versions = [version(name) for name in ("localdflash", "llama-cpp-python")]
    return repr((METHOD, files, versions, options.backend, options.device, options.gpu_layers, options.draft))


def tried(paths: list[Path], options: Options) -> str | None:
    """Why the files cannot be loaded, "" if they can; None if that was not found out."""
    limit, died = PATIENCE + sum(map(size_of, paths)) / RATE, gpu_watch.deaths()
    limit += COMPILING if driver_present() else 0.0
    try:
        ended = child.run(PROGRAM, options, limit, lambda _: None)
    except OSError as error:
        raise LocaldflashError(f"{paths[0]}: no process to try it in: {error.strerror}") from error
    if ended.told is not None:
        _raise(ended.told)
        return ""
    if ended.expired:
        return f"{paths[0]}: loading it took more than {limit:.0f} s and was ended: {AGAIN}"
    if gpu_watch.deaths() > died:
        return None  # the GPU's doing, for which there are rules of their own
    return _ended(paths[0], ended.code, ended.words)


def _raise(outcome: child.Told) -> None:
    """Raise the error that the child reported, if it did."""
    if outcome["kind"]:
        kind: type[LocaldflashError] = getattr(errors, outcome["kind"])
        raise kind(outcome["said"])


def _ended(path: Path, code: int, words: str) -> str | None:
    """The verdict on a file by how the child ended, which wrote `words` at last."""
    if not (name := ending_signal(code)):
        return None  # an error of ours: loading it here shows which
    if name in FAULTS:
        return f"{path}: it ended the process that tried to load it ({name}: {words}): {AGAIN}"
    if name == "SIGKILL":
        raise OutOfMemory(f"{path}: the system ended the process that tried to load it: memory may be short")
    raise LocaldflashError(f"{path}: the process that tried to load it was ended by {name}: try again")


def _recall(place: Path) -> str | None:
    try:
        with place.open("rb") as stream:
            said = json.loads(stream.read(LONGEST))["said"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return said if isinstance(said, str) else None


def _keep(place: Path, said: str) -> None:
    """Keep a verdict; where that cannot be, the file is tried at every load."""
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError, LocaldflashError):
        create_private(place.parent)
        try:
            fresh.write_text(json.dumps({"said": said}) + "\n", encoding="utf-8")
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)
