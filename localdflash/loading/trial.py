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
from localdflash.models.weights.split import count_bytes, files_of

METHOD_VERSION = 1  # version of the trial; verdicts of other versions do not count
TIMEOUT_SECONDS = 60.0
COMPILE_SECONDS = 600.0  # added to the timeout if there is a GPU to compile kernels for
BYTES_PER_SECOND = 10_000_000  # added to the timeout for slow disks and first measurements
MAX_VERDICT_BYTES = 4096
PROGRAM = "from localdflash.loading.trial_child import main; main()"
FAULTS = frozenset({"SIGABRT", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
REMEDY = "download or convert it again (or `touch` it to try again)"


def try_first(files: LocalPair, options: Options) -> None:
    """Try unknown files of a pair in a child, once for each verdict; ModelError if the child crashed or hung."""
    drafters = (files.drafter_gguf, files.drafter_safetensors) if options.draft else ()
    paths = [path for path in (files.target, *drafters) if path]
    if all(map(is_known, paths)):
        return
    for path in paths:
        if path.suffix != ".safetensors":
            read_header(path)
    key = hashlib.sha256(_key(paths, options).encode()).hexdigest()[:32]
    verdict_path = cache_folder() / "trials" / f"{key}.json"
    fault = read_json(verdict_path, MAX_VERDICT_BYTES).get("said")
    if not isinstance(fault, str):
        fault = try_files(paths, options)
        if fault is not None:
            with suppress(OSError, LocaldflashError):  # without a stored verdict, every load tries the file
                write_json(verdict_path, {"said": fault})
    if fault:
        raise ModelError(fault)


def _key(paths: list[Path], options: Options) -> str:
    """Return a text of everything that a verdict depends on: versions, files and options."""
    stats = [(str(part), part.stat()) for path in paths for part in files_of(path)]
    files = [(name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
    versions = [version_of(name) for name in ("localdflash", "llama-cpp-python")]
    return repr((METHOD_VERSION, files, versions, options.backend, options.device, options.gpu_layers, options.draft))


def try_files(paths: list[Path], options: Options) -> str | None:
    """Return why the files cannot be loaded, "" if they can be, None if the trial was inconclusive."""
    limit, crashes = TIMEOUT_SECONDS + sum(map(count_bytes, paths)) / BYTES_PER_SECOND, gpu_watch.count_crashes()
    limit += COMPILE_SECONDS if driver_present() else 0.0
    try:
        child_exit = child.run(PROGRAM, options, limit, lambda _: None)
    except OSError as error:
        raise LocaldflashError(f"{paths[0]}: no process could be started for its trial ({error.strerror})") from error
    if child_exit.report is not None:
        if kind := child_exit.report["kind"]:
            raise getattr(errors, kind)(child_exit.report["reason"])
        return ""
    if child_exit.is_timeout:
        return f"{paths[0]}: loading took more than {limit:.0f} s and was stopped; {REMEDY}"
    if gpu_watch.count_crashes() > crashes:
        return None  # the GPU failed, which `gpu_watch` handles
    return _crash_reason(paths[0], child_exit.code, child_exit.stderr_line)


def _crash_reason(path: Path, code: int, stderr_line: str) -> str | None:
    """Return the verdict on a file whose child ended without a report; see `try_files`."""
    if not (name := ending_signal(code)):
        return None  # an error of localdflash itself, which the load in this process shows
    if name in FAULTS:
        return f"{path}: the process that tried to load it crashed ({name}: {stderr_line}); {REMEDY}"
    if name == "SIGKILL":
        raise OutOfMemory(f"{path}: the system killed the process that tried to load it; free memory and try again")
    raise LocaldflashError(f"{path}: the process that tried to load it was ended by {name}; try again")
