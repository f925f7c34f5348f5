"""Trial load of a new file in a child process, so that a crash in C code ends the child and not the daemon.

The child loads the pair and generates a few tokens within a time limit. Its measurements and the verdict are stored.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from localdflash.backends.cuda.device import driver_present
from localdflash.base import errors
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.extras import version_of
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import cache_folder
from localdflash.base.machine import gpu_watch
from localdflash.base.system.process import ending_signal
from localdflash.loading import child
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import is_known
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.split import files_of, size_of

METHOD_VERSION = 1  # of the trial; verdicts of other versions do not count
TIMEOUT_SECONDS = 60.0
COMPILE_SECONDS = 600.0  # added where there is a GPU to compile kernels for
BYTES_PER_SECOND = 10_000_000  # added to the timeout for slow disks and first measurements
MAX_VERDICT_BYTES = 4096
PROGRAM = "from localdflash.loading.trial_child import main; main()"
FAULTS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
REMEDY = "download or convert it again (`touch` has it tried again)"


def try_first(files: LocalPair, options: Options) -> None:
    """Have a child load a pair's files, unless they have a good verdict; ModelError if that crashes or hangs."""
    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    paths = [path for path in (files.target, *drafters) if path]
    if all(map(is_known, paths)):
        return
    for path in paths:
        if path.suffix != ".safetensors":
            read_header(path)
    key = hashlib.sha256(_key(paths, options).encode()).hexdigest()[:32]
    place = cache_folder() / "trials" / f"{key}.json"
    said = read_json(place, MAX_VERDICT_BYTES).get("said")
    if not isinstance(said, str):
        said = tried(paths, options)
        if said is not None:
            with suppress(OSError, LocaldflashError):  # then the file is tried at every load
                write_json(place, {"said": said})
    if said:
        raise ModelError(said)


def _key(paths: list[Path], options: Options) -> str:
    """Return what a verdict depends on."""
    stats = [(str(part), part.stat()) for path in paths for part in files_of(path)]
    files = [(name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in stats]
    versions = [version_of(name) for name in ("localdflash", "llama-cpp-python")]
    return repr((METHOD_VERSION, files, versions, options.backend, options.device, options.gpu_layers, options.draft))


def tried(paths: list[Path], options: Options) -> str | None:
    """Return why the files cannot be loaded, "" if they can be, None if the trial was inconclusive."""
    limit, died = TIMEOUT_SECONDS + sum(map(size_of, paths)) / BYTES_PER_SECOND, gpu_watch.deaths()
    limit += COMPILE_SECONDS if driver_present() else 0.0
    try:
        ended = child.run(PROGRAM, options, limit, lambda _: None)
    except OSError as error:
        raise LocaldflashError(f"{paths[0]}: no process could be started for its trial ({error.strerror})") from error
    if ended.report is not None:
        if kind := ended.report["kind"]:
            raise getattr(errors, kind)(ended.report["said"])
        return ""
    if ended.is_timeout:
        return f"{paths[0]}: loading took more than {limit:.0f} s and was stopped; {REMEDY}"
    if gpu_watch.deaths() > died:
        return None  # the GPU failed, which `gpu_watch` handles
    return _crash_reason(paths[0], ended.code, ended.stderr_line)


def _crash_reason(path: Path, code: int, stderr_line: str) -> str | None:
    """Return the verdict on a file whose child ended without a report."""
    if not (name := ending_signal(code)):
        return None  # an error of localdflash's own, which loading the file here shows
    if name in FAULTS:
        return f"{path}: the process that tried to load it crashed ({name}: {stderr_line}); {REMEDY}"
    if name == "SIGKILL":
        raise OutOfMemory(f"{path}: the system killed the process that tried to load it; free memory and try again")
    raise LocaldflashError(f"{path}: the process that tried to load it was ended by {name}; try again")
