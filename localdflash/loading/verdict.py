"""What is known of the CUDA engine on this machine with a pair: a file for each, from before its check begins.

A check that left its file at "begun", and that no process does any more, ended its process: that is a verdict, too.
"""

import hashlib
import json
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self, get_args

from filelock import Timeout

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.paths import cache_folder, create_private
from localdflash.base.system.file_lock import process_lock
from localdflash.loading.backends import on_cuda
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair

METHOD = 1  # of checking: what another one found is checked again
HOW = ("drafter", "draft", "kv", "drafter_bits", "native_fp4")  # options that choose kernels
LONGEST = 1 << 14  # bytes of a file
State = Literal["begun", "sound", "unsound", "undecided"]  # undecided: something else kept it from being found out


@dataclass(frozen=True)
class Verdict:
    """What a check found, in one line if it is not sound. `operation` failed, or was begun last."""

    state: State
    pair: str
    machine: list[str]
    day: str
    options: dict[str, Any]  # fields of `Options` that it depends on
    operation: str = ""
    said: str = ""


@dataclass(frozen=True)
class Subject:
    """A pair on this machine, and the file of its verdict."""

    pair: str
    machine: tuple[str, ...]
    options: dict[str, Any]
    place: Path

    @classmethod
    def of(cls, files: LocalPair, options: Options) -> Self:
        """NoDevice and ModelError say why the engine cannot run the pair here at all."""

        def identify() -> tuple[tuple[str, ...], tuple[str, ...]]:
            from localdflash.backends.cuda.identity import subject

            return subject(files, options)

        here, shapes = on_cuda(identify)
        key = hashlib.sha256(repr((METHOD, here, shapes)).encode()).hexdigest()[:32]
        how = {name: getattr(options, name) for name in HOW}
        return cls(options.pair, here, how, _folder() / f"{key}.json")

    def verdict(self, state: State, operation: str = "", said: str = "") -> Verdict:
        """A verdict of today on this."""
        today = date.today().isoformat()
        return Verdict(state, self.pair, list(self.machine), today, self.options, operation, said)

    def lock(self) -> AbstractContextManager[None]:
        """Held by the process that checks; Timeout if that is another one."""
        create_private(self.place.parent)
        return process_lock(self.place.with_suffix(".lock"))

    def why_not(self) -> str:
        """Why the engine is not to be trusted with the pair here, in one line with a remedy; "" if it is."""
        again = f"`localdflash doctor --check-gpu {self.pair}`"
        verdict = recall(self.place)
        if verdict is None:
            return f"it was not checked on this GPU yet: {again} does"
        match verdict.state:
            case "sound":
                return ""
            case "unsound":
                return f"its check on this GPU failed ({verdict.said}): {again} repeats it"
            case "undecided":
                return f"it could not be checked on this GPU: {verdict.said}"
            case "begun":
                if self._is_held():
                    return "another process is checking it on this GPU"
                return f"the last process that checked it here died ({verdict.operation}): {again} repeats it"

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
    """All verdicts on the GPUs of this machine, its driver and libraries as they are now, by pair. NoDevice without."""

    def identify() -> list[tuple[str, ...]]:
        from localdflash.backends.cuda.identity import machines

        return machines()

    here = [list(machine) for machine in on_cuda(identify)]
    found = [verdict for place in _folder().glob("*.json") if (verdict := recall(place))]
    return sorted((one for one in found if one.machine in here), key=lambda one: one.pair)


def recall(place: Path) -> Verdict | None:
    """The verdict that is kept there, None if there is none that can be read."""
    try:
        with place.open("rb") as stream:
            told = json.loads(stream.read(LONGEST))
        verdict = Verdict(**{field.name: told[field.name] for field in fields(Verdict)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return verdict if verdict.state in get_args(State) else None


def keep(place: Path, verdict: Verdict) -> None:
    """Keep a verdict, on the disk before this returns: what comes next may end the machine. LocaldflashError if not."""
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        create_private(place.parent)
        with fresh.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(verdict)) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(place)
    except OSError as error:
        raise LocaldflashError(f"{place}: cannot be written: {error.strerror}: set LOCALDFLASH_HOME") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
