"""Check of the CUDA engine on this GPU: report the stored verdict of each pair, or check a pair now."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localdflash.base.errors import LocaldflashError, NoDevice
from localdflash.cli.doctor.check import Finding
from localdflash.cli.output import ProgressBar

if TYPE_CHECKING:
    from localdflash.loading.proof import Verdict
    from localdflash.models.load_options import Options

REMEDY = "run `localdflash doctor --check-gpu PAIR` to check a pair"
BAR_AFTER_SECONDS = 0.5


def report_verdicts(name: str) -> Finding:
    """Report the stored verdicts for this GPU with the current driver and libraries."""
    from localdflash.backends.cuda.device import driver_present
    from localdflash.loading.proof import list_verdicts

    if not driver_present():
        return Finding(name, "ok", "not used: no NVIDIA driver")
    try:
        verdicts = list_verdicts()
    except NoDevice:
        return Finding(name, "ok", "not used: the CUDA engine does not run on this machine (see cuda above)")
    if not verdicts:
        return Finding(name, "ok", "no pair was checked on this GPU yet; each is checked before its first run", REMEDY)
    detail = "; ".join(map(_describe, verdicts))
    if any(verdict.state != "sound" for verdict in verdicts):
        return Finding(name, "warning", detail, REMEDY)
    return Finding(name, "ok", detail)


def _describe(verdict: "Verdict") -> str:
    text = {
        "sound": f"is sound {_describe_fallbacks(verdict)}({verdict.day})",
        "begun": f"is being checked, or its check died ({verdict.operation}, {verdict.day})",
        "undecided": f"could not be checked ({verdict.reason}, {verdict.day})",
    }.get(verdict.state, f"failed ({verdict.reason}, {verdict.day})")
    return f"{verdict.pair} {text}"


def _describe_fallbacks(verdict: "Verdict") -> str:
    """Describe the fallbacks of a verdict: which choices replace kernels, why, and at which cost."""
    return f"with {verdict.choices}: {'; '.join(verdict.degraded)} " if verdict.choices else ""


def check_pair(spec: str) -> Iterator[Finding]:
    """Check the CUDA engine with a pair: with the configured options, and with all options that have a verdict."""
    from localdflash.loading.proof import Subject, check
    from localdflash.models.registry.registry import load_registry, local_files

    for options in _options_to_check(spec):
        files = local_files(load_registry().resolve(options.pair, options.drafter or None))
        subject = Subject.of(files, options)
        verdict = check(subject, files, _with_bars(options))
        if verdict is None:
            raise LocaldflashError(f"{spec}: another process is checking this pair on this GPU; try again later")
        yield Finding("gpu check", "ok" if verdict.state == "sound" else "failed", _describe(verdict))


def _options_to_check(spec: str) -> "Sequence[Options]":
    from localdflash.loading.proof import list_verdicts
    from localdflash.models.config import load_config
    from localdflash.models.load_options import Options

    model = load_config().model
    configured = Options(spec, kv=model.kv, drafter_bits=model.drafter_bits)
    others = [replace(configured, **verdict.options) for verdict in list_verdicts() if verdict.pair == spec]
    return [configured, *(options for options in others if options != configured)]


def _with_bars(options: "Options") -> "Options":
    if not sys.stderr.isatty():
        return options
    compiling = ProgressBar("compiling", " kernels", BAR_AFTER_SECONDS)
    return replace(options, progress=ProgressBar("loading", "B", BAR_AFTER_SECONDS), compiling=compiling)
