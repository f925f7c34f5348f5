"""What was found of the CUDA engine on this GPU, pair by pair, and the check itself by hand."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localdflash.base.errors import LocaldflashError, NoDevice
from localdflash.cli.doctor.check import Finding, Status

if TYPE_CHECKING:
    from localdflash.loading.proof import Verdict
    from localdflash.models.load_options import Options

HOW = "run `localdflash doctor --check-gpu PAIR` to check a pair"
BAR_AFTER_SECONDS = 0.5  # a bar appears only where loading takes longer
BAR_WIDTH = 30
STATUS: dict[str, Status] = {"sound": "ok"}


def found(name: str) -> Finding:
    """Tell the verdicts on this GPU, with its driver and the libraries as they are."""
    from localdflash.backends.cuda.device import driver_present
    from localdflash.loading.proof import known

    if not driver_present():
        return Finding(name, "ok", "not used: no NVIDIA driver")
    try:
        verdicts = known()
    except NoDevice:
        return Finding(name, "ok", "not used: the CUDA engine does not run on this machine (see cuda above)")
    if not verdicts:
        return Finding(
            name, "ok", "no pair has been checked on this GPU yet; each pair is checked before its first run", HOW
        )
    wrong = any(verdict.state != "sound" for verdict in verdicts)
    return Finding(name, "warning" if wrong else "ok", "; ".join(map(_told, verdicts)), HOW if wrong else "")


def _told(verdict: "Verdict") -> str:
    match verdict.state:
        case "sound":
            return f"{verdict.pair} is sound ({verdict.day})"
        case "begun":
            return f"{verdict.pair} is being checked, or its check died ({verdict.operation}, {verdict.day})"
        case "undecided":
            return f"{verdict.pair} could not be checked ({verdict.said}, {verdict.day})"
    return f"{verdict.pair} failed ({verdict.said}, {verdict.day})"


def again(spec: str) -> Iterator[Finding]:
    """Check the engine with a pair: as the settings have it run, and in every other way that there is a verdict on."""
    from localdflash.loading.proof import Subject, check
    from localdflash.models.registry.registry import load_registry, local_files

    for options in _ways(spec):
        files = local_files(load_registry().resolve(options.pair, options.drafter or None))
        subject = Subject.of(files, options)
        verdict = check(subject, files, _shown(options))
        if verdict is None:
            raise LocaldflashError(f"{spec}: another process is checking this pair on this GPU; try again later")
        yield Finding("gpu check", STATUS.get(verdict.state, "failed"), _told(verdict))


def _ways(spec: str) -> "Sequence[Options]":
    from localdflash.loading.proof import known
    from localdflash.models.config import load_config
    from localdflash.models.load_options import Options

    how = load_config().model
    usual = Options(spec, kv=how.kv, drafter_bits=how.drafter_bits)
    others = [replace(usual, **verdict.options) for verdict in known() if verdict.pair == spec]
    return [usual, *(options for options in others if options != usual)]


def _shown(options: "Options") -> "Options":
    """Return the options with a bar on stderr, if that is a terminal."""
    bar = LoadingBar() if sys.stderr.isatty() else None
    return replace(options, progress=bar, compiling=bar and bar.compiling)


class LoadingBar:
    """Progress bar on one line of stderr, removed at the end."""

    def __init__(self) -> None:
        self._began, self._drawn = time.monotonic(), -1

    def __call__(self, done: int, total: int) -> None:
        """Show how many bytes were loaded."""
        if (filled := _filled(done, total)) != self._drawn or done >= total:
            self._drawn = filled
            self._draw("loading", done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def compiling(self, done: int, total: int) -> None:
        """Show how many kernels were compiled for this GPU."""
        self._draw("compiling", done, total, f"{done} of {total}")

    def _draw(self, doing: str, done: int, total: int, said: str) -> None:
        if time.monotonic() - self._began < BAR_AFTER_SECONDS:
            return
        filled = _filled(done, total)
        bar = f"{doing} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {said}"
        print(f"\r{bar}" if done < total else "\r" + " " * len(bar) + "\r", end="", file=sys.stderr, flush=True)


def _filled(done: int, total: int) -> int:
    return BAR_WIDTH * done // max(total, 1)
