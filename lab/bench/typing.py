"""Choice of the files to type for `localdflash bench typing`, and the report of a replay."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.lab.bench.passages import TypingJob, from_file, from_line, read
from localdflash.lab.bench.prompt_set import FOLDER
from localdflash.lab.bench.spread import spread
from localdflash.lab.bench.typing_replay import TypingOptions, TypingReplay
from localdflash.lab.bench.typist import TypedKeys

DEFAULT_FILES = 20  # number of held-out files to type
MAX_CACHED_MS = 10.0  # a suggestion that arrives this fast came from a cache, since no engine is that fast


def held_out(count: int | None, typing_options: TypingOptions) -> list[TypingJob]:
    """Return one job for each of the first `count` held-out files, by default `DEFAULT_FILES`."""
    paths = sorted(FOLDER.glob("*.py"))[: count or DEFAULT_FILES]
    return [from_file(path.name, read(path), typing_options.keys, typing_options.seed) for path in paths]


def of_files(locations: Sequence[str], typing_options: TypingOptions) -> list[TypingJob]:
    """Return a job for each location: `FILE` types a random part, chosen by the seed, `FILE:LINE` the part from LINE.

    UsageError for a missing file, or for one that is given twice.
    """
    parsed = [_parse_location(location) for location in locations]
    folder = os.path.commonpath([path.resolve().parent for path, _ in parsed])
    jobs: dict[str, TypingJob] = {}
    for path, line in parsed:
        name, text = os.path.relpath(path.resolve(), folder), read(path)
        if name in jobs:
            raise UsageError(f"{path}: given twice; name each file once")
        jobs[name] = (
            from_line(name, text, line, typing_options.keys)
            if line
            else from_file(name, text, typing_options.keys, typing_options.seed)
        )
    return list(jobs.values())


def _parse_location(location: str) -> tuple[Path, int]:
    """Return the file and its line number; 0 without a line."""
    name, _, line = location.rpartition(":")
    path, number = (Path(name), int(line)) if name and line.isascii() and line.isdigit() else (Path(location), 0)
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    return path, number


def report(replay: TypingReplay, typing_options: TypingOptions) -> dict[str, Any]:
    """Return the result as JSON values; shares are between 0 and 1, times are milliseconds."""
    trace, texts = replay.trace, replay.trace.request_to_text
    generated_tokens, shown_tokens = map(replay.engine.get, ("generated_tokens", "shown_tokens"))
    all_files = total(replay.files.values())
    return {
        **asdict(typing_options),
        "interrupted": replay.interrupted,
        "seconds": round(replay.seconds, 1),
        "engine": replay.engine,
        "overall": {
            **keystrokes(all_files),
            "pressed_per_second": round(all_files.pressed / replay.seconds, 2),
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
            "from_cache": round(sum(ms <= MAX_CACHED_MS for ms in texts) / len(texts), 3) if texts else None,
            "wasted_tokens": round(max(1 - shown_tokens / generated_tokens, 0.0), 3) if generated_tokens else None,
        },
        "ms": {
            "key_to_request": spread(trace.key_to_request),
            "request_to_answer": spread(trace.request_to_answer),
            "request_to_first_line": spread(texts),
            "request_to_first_line_not_cached": spread([ms for ms in texts if ms > MAX_CACHED_MS]),
            "key_to_shown": spread(trace.key_to_shown),
        },
        "files": {name: keystrokes(typed) for name, typed in replay.files.items()},
    }


def saved_share(typed: TypedKeys) -> float:
    """Return the share of keys that were not pressed."""
    return 1 - typed.pressed / typed.keys if typed.keys else 0.0


def total(files: Iterable[TypedKeys]) -> TypedKeys:
    """Return the sum of the keys of all files."""
    all_files = TypedKeys()
    for typed in files:
        all_files.keys += typed.keys
        all_files.pressed += typed.pressed
        all_files.accepted_characters += typed.accepted_characters
        for part, count in typed.accepted.items():
            all_files.accepted[part] += count
    return all_files


def keystrokes(typed: TypedKeys) -> dict[str, Any]:
    """Return the counts and the share of keystrokes saved as JSON values."""
    return {**asdict(typed), "keystrokes_saved": round(saved_share(typed), 3)}
