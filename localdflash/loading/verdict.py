"""Verdicts on the CUDA engine on this machine: a file for each pair, written before its check begins.

A file that stays at "begun" while no process holds its lock is a verdict, too: the check crashed its process.
"""

import hashlib
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self, get_args

from filelock import Timeout

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import cache_folder, create_private
from localdflash.base.system.file_lock import process_lock
from localdflash.loading.backends import call_cuda
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair

METHOD_VERSION = 1  # of the check; verdicts of other versions do not count
KERNEL_OPTIONS = ("drafter", "draft", "kv", "drafter_bits", "native_fp4")
MAX_FILE_BYTES = 1 << 14
State = Literal["begun", "sound", "unsound", "undecided"]  # undecided: the check was prevented


@dataclass(frozen=True)
class Verdict:
    """Result of a check. `operation` failed, or was begun last; `said` is the reason in one line."""

    state: State
    pair: str
    machine: list[str]
    day: str
    options: dict[str, Any]  # the fields `KERNEL_OPTIONS` of `Options`
    operation: str = ""
    said: str = ""


@dataclass(frozen=True)
class Subject:
    """Pair on this machine, and the file of its verdict."""

    pair: str
    machine: tuple[str, ...]
    options: dict[str, Any]
    place: Path

    @classmethod
    def of(cls, files: LocalPair, options: Options) -> Self:
        """Identify a pair on this machine; NoDevice or ModelError if the engine cannot run it here."""

        def identify() -> tuple[tuple[str, ...], tuple[str, ...]]:
            from localdflash.backends.cuda.identity import subject

            return subject(files, options)

        here, shapes = call_cuda(identify)
        key = hashlib.sha256(repr((METHOD_VERSION, here, shapes)).encode()).hexdigest()[:32]
        kernel_options = {name: getattr(options, name) for name in KERNEL_OPTIONS}
        return cls(options.pair, here, kernel_options, _folder() / f"{key}.json")

    def verdict(self, state: State, operation: str = "", said: str = "") -> Verdict:
        """Return a verdict with today's date."""
        today = date.today().isoformat()
        return Verdict(state, self.pair, list(self.machine), today, self.options, operation, said)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the check for this process; Timeout if another process holds it."""
        create_private(self.place.parent)
        return process_lock(self.place.with_suffix(".lock"))

    def why_not(self) -> str:
        """Return why the engine is not trusted with the pair, with a remedy; "" if it is trusted."""
        again = f"run `localdflash doctor --check-gpu {self.pair}`"
        verdict = recall(self.place)
        if verdict is None:
            return f"not checked on this GPU yet; {again}"
        match verdict.state:
            case "sound":
                return ""
            case "unsound":
                return f"its check on this GPU failed ({verdict.said}); {again} to repeat it"
            case "undecided":
                return f"it could not be checked on this GPU: {verdict.said}"
            case "begun":
                if self._is_held():
                    return "another process is checking it on this GPU"
                return f"its last check crashed its process ({verdict.operation}); {again} to repeat it"

    def _is_held(self) -> bool:
        with suppress(OSError, LocaldflashError):
            try:
                with self.lock():
                    return False
            except Timeout:
                return True
        return False


def _folder() -> Path:
    return cache_folder() / "gpu-checks"


def known() -> list[Verdict]:
    """Return all verdicts for this machine's GPUs, driver and libraries, sorted by pair; NoDevice without a GPU."""

    def identify() -> list[tuple[str, ...]]:
        from localdflash.backends.cuda.identity import machines

        return machines()

    here = [list(machine) for machine in call_cuda(identify)]
    found = [verdict for place in _folder().glob("*.json") if (verdict := recall(place))]
    return sorted((one for one in found if one.machine in here), key=lambda one: one.pair)


def recall(place: Path) -> Verdict | None:
    """Return the stored verdict, None if there is no readable one."""
    stored = read_json(place, MAX_FILE_BYTES)
    try:
        verdict = Verdict(**{field.name: stored[field.name] for field in fields(Verdict)})
        return verdict if verdict.state in get_args(State) else None
    except (KeyError, TypeError):
        return None


def keep(place: Path, verdict: Verdict) -> None:
    """Store a verdict on the disk before returning, since the check may crash the machine; LocaldflashError if not."""
    try:
        write_json(place, asdict(verdict), sync=True)
    except OSError as error:
        raise LocaldflashError(
            f"{place}: cannot be written ({error.strerror}); set LOCALDFLASH_HOME to another folder"
        ) from error
