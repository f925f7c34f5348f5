"""`localdflash bench typing`: the jobs that are typed, and the report of a replay."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.lab.bench.passages import TypingJob, from_file, from_line, read
from localdflash.lab.bench.prompt_set import FOLDER
from localdflash.lab.bench.spread import spread
from localdflash.lab.bench.typing_replay import Manner, TypingReplay
from localdflash.lab.bench.typist import TypedKeys

FILES = 20  # of the held-out ones
CACHED_MS = 10.0  # an answer with text that comes within this was there already: no engine is that fast


def held_out(count: int | None, manner: Manner) -> list[TypingJob]:
    """Return jobs from files that are in no training corpus."""
    paths = sorted(FOLDER.glob("*.py"))[: count or FILES]
    return [from_file(path.name, read(path), manner.keys, manner.seed) for path in paths]


def of_files(places: Sequence[str], manner: Manner) -> list[TypingJob]:
    """Return jobs from any files: `FILE` for a part chosen by the seed, `FILE:LINE` for the lines from there."""
    split = [_split(place) for place in places]
    folder = os.path.commonpath([path.resolve().parent for path, _ in split])
    jobs: dict[str, TypingJob] = {}
    for path, line in split:
        name, text = os.path.relpath(path.resolve(), folder), read(path)
        if name in jobs:
            raise UsageError(f"{path}: it is given twice")
        jobs[name] = (
            from_line(name, text, line, manner.keys) if line else from_file(name, text, manner.keys, manner.seed)
        )
    return list(jobs.values())


def _split(place: str) -> tuple[Path, int]:
    name, _, line = place.rpartition(":")
    path, number = (Path(name), int(line)) if name and line.isascii() and line.isdigit() else (Path(place), 0)
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    return path, number


def report(replay: TypingReplay, manner: Manner) -> dict[str, Any]:
    """Return the result as JSON values; shares are of 1, times in milliseconds."""
    trace, texts = replay.trace, replay.trace.request_to_text
    generated, shown = replay.engine["generated_tokens"], replay.engine["shown_tokens"]
    whole = total(replay.files.values())
    return {
        **asdict(manner),
        "seconds": round(replay.seconds, 1),
        "engine": replay.engine,
        "overall": {
            **keystrokes(whole),
            "pressed_per_second": round(whole.pressed / replay.seconds, 2),
            "requests": trace.requests,
            "answered": len(trace.request_to_answer),
            "with_text": len(texts),
            "shown": trace.shown,
            "rejected": trace.rejected,
            "grown": trace.grown,
            "stale": trace.stale,
            "flicker": trace.flicker,
            "late": trace.late,
            "errors": len(trace.errors),
            "first_error": trace.errors[0] if trace.errors else None,
            "from_cache": round(sum(ms <= CACHED_MS for ms in texts) / len(texts), 3) if texts else None,
            "wasted_tokens": round(max(1 - shown / generated, 0.0), 3) if generated else None,
        },
        "ms": {
            "key_to_request": spread(trace.key_to_request),
            "request_to_answer": spread(trace.request_to_answer),
            "request_to_first_line": spread(texts),
            "request_to_first_line_not_cached": spread([ms for ms in texts if ms > CACHED_MS]),
            "key_to_shown": spread(trace.key_to_shown),
        },
        "files": {name: keystrokes(typed) for name, typed in replay.files.items()},
    }


def saved(typed: TypedKeys) -> float:
    """Return the share of keys that were not pressed."""
    return 1 - typed.pressed / typed.keys if typed.keys else 0.0


def total(files: Iterable[TypedKeys]) -> TypedKeys:
    """Return the sum of the keys of all files."""
    whole = TypedKeys()
    for typed in files:
        whole.keys += typed.keys
        whole.pressed += typed.pressed
        whole.accepted_characters += typed.accepted_characters
        for part, count in typed.accepted.items():
            whole.accepted[part] += count
    return whole


def keystrokes(typed: TypedKeys) -> dict[str, Any]:
    """Return the keys as JSON values."""
    return {**asdict(typed), "keystrokes_saved": round(saved(typed), 3)}
