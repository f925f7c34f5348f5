"""Answer many prompts at a time, greedily, and store ids, features and the likeliest tokens.

Prompts that were answered before a restart are left out. An answer that repeats itself is cut.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import TrainingError
from localdflash.lab.train.kept_answers import ENDINGS, AnswerWriter
from localdflash.lab.train.parallel_target import Parallel
from localdflash.lab.train.questions import Question
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.training_prompts import COMPLETIONS, KINDS
from localdflash.text.chat_template import Role, TemplateMessage, encode_chat
from localdflash.text.fim_formats import FimFormat, stop_ids
from localdflash.text.tokenizer import Tokenizer

FLUSH_SECONDS = 30.0
LONGEST_PROMPT = 352  # ids of a question; longer ones are left out
LONGEST_FILL = 544  # ids of a completion's prompt
ANSWER_LIMIT = 256  # ids
FILL_LIMIT = 96  # ids of a completion
SHORTER_LIMITS = {"function": 192, "explain": 192, "tests": 224, "json": 192, **dict.fromkeys(COMPLETIONS, FILL_LIMIT)}
CONTEXT = 640  # of a slot: the longest prompt with the longest answer
LONGEST_PERIOD, LEAST_REPEATED = 40, 48  # ids


@dataclass
class _Going:
    """Conversation in progress."""

    prompt: Question
    asked: int  # ids of the prompt
    ids: list[int]
    taps: list[NDArray[np.float16]]  # [rows, width] each
    likely: list[NDArray[np.void]] = field(default_factory=list)  # LIKELY [1, COUNT] of each token of the answer

    def ending(self, ends: frozenset[int]) -> str | None:
        """Return why the answer is over, one of ENDINGS, or None."""
        if len(self.ids) == self.asked:
            return None
        if self.ids[-1] in ends:
            return "end"
        if len(self.ids) - self.asked >= SHORTER_LIMITS.get(self.prompt.kind, ANSWER_LIMIT):
            return "limit"
        return "repeats" if len(self.ids) % 8 == 0 and repeats(self.ids[self.asked :]) else None


def repeats(ids: Sequence[int]) -> bool:
    """Return whether the ids end in a third repetition of one stretch, or many of a very short one."""
    row = np.asarray(ids[-3 * LONGEST_PERIOD :])
    for period in range(1, min(LONGEST_PERIOD, len(row) // 3) + 1):
        known = max(3 * period, LEAST_REPEATED)
        if known <= len(row) and bool((row[-known + period :] == row[-known:-period]).all()):
            return True
    return False


class PromptEncoder:
    """Encoder of prompts: the target's chat template, or FIM with `fim`. `ends` end an answer."""

    def __init__(self, path: Path, fim: FimFormat | None = None) -> None:
        self.tokenizer = Tokenizer.load(path)
        self.template = self.tokenizer.chat_template() or ""
        self.ends = stop_ids(fim, self.tokenizer) if fim else self.tokenizer.ends
        self.longest = LONGEST_FILL if fim else LONGEST_PROMPT
        if not self.template and not fim:
            raise TrainingError(f"{path} has no chat template: answers to chat prompts need one")

    def encode(self, prompt: Question) -> list[int]:
        """Return the ids of a question with its earlier turns, or of a completion."""
        if prompt.ids:
            return list(prompt.ids)
        roles: Iterator[Role] = cycle(("user", "assistant"))
        turns = [TemplateMessage(role, text) for role, text in zip(roles, (*prompt.before, prompt.text), strict=False)]
        return encode_chat(self.tokenizer, self.template, turns)


@dataclass
class Progress:
    """Number of answers so far, and the rate of this run."""

    wanted: int  # answer ids
    answers: int
    answered: int  # ids
    before: int
    too_long: int = 0  # prompts that were left out
    began: float = field(default_factory=time.monotonic)

    def share(self, going: int) -> float:
        """Return the finished share, with `going` ids of unfinished answers."""
        return min(1.0, (self.answered + going) / self.wanted)

    def line(self, going: int) -> str:
        """Return one line with rate and remaining time."""
        rate = (self.answered - self.before + going) / max(time.monotonic() - self.began, 1e-3)
        line = f"{self.answers:,} answers, {self.answered:,} of {self.wanted:,} answer tokens"
        if not rate:  # nothing was answered in this run yet
            return line
        left = max(0, self.wanted - self.answered - going) / rate / 60
        return f"{line}, {rate:.1f} tokens/s, {left:.0f} min left"


def answer_prompts(
    target: Parallel,
    asker: PromptEncoder,
    prompts: Sequence[Question],
    writer: AnswerWriter,
    tokens: int,
    reporter: Reporter,
) -> None:
    """Answer prompts until about `tokens` answer ids are stored, earlier runs included."""
    known = writer.known
    done = set(known["number"].tolist())
    before = int((known["length"].astype(np.int64) - known["prompt"]).sum())
    progress = Progress(tokens, len(known), before, before)
    waiting = _encoded(asker, (p for p in prompts if p.number not in done), progress)
    going: dict[int, _Going] = {}
    flushed = time.monotonic()
    while True:
        if progress.answered < tokens:
            _fill(target, waiting, going)
        _finish(going, asker.ends, writer, progress)
        if not going:
            if progress.answered >= tokens:
                break
            if not _fill(target, waiting, going):
                break
            continue
        _step(target, going)
        now = time.monotonic()
        if now - flushed > FLUSH_SECONDS:
            writer.flush()
            flushed = now
        unfinished = sum(len(g.ids) - g.asked for g in going.values())
        reporter.move(progress.share(unfinished), progress.line(unfinished))
    writer.flush()
    reporter.say(progress.line(0))
    if progress.too_long:
        reporter.say(f"{progress.too_long:,} prompts of more than {asker.longest} tokens were left out")


def _encoded(
    asker: PromptEncoder, prompts: Iterator[Question], progress: Progress
) -> Iterator[tuple[Question, list[int]]]:
    for prompt in prompts:
        ids = asker.encode(prompt)
        if len(ids) <= asker.longest:
            yield prompt, ids
        else:
            progress.too_long += 1


def _fill(target: Parallel, waiting: Iterator[tuple[Question, list[int]]], going: dict[int, _Going]) -> bool:
    """Give every free slot a prompt; return whether any slot is in use."""
    for slot in range(target.sequences):
        if slot in going:
            continue
        found = next(waiting, None)
        if found is None:
            break
        prompt, ids = found
        going[slot] = _Going(prompt, len(ids), list(ids), [half(target.begin(slot, ids))])
    return bool(going)


def _step(target: Parallel, going: dict[int, _Going]) -> None:
    slots = sorted(going)
    step = target.step(slots, [going[slot].ids[-1] for slot in slots])
    rows = half(step.taps)
    for row, slot in enumerate(slots):
        going[slot].ids.append(int(step.newest[row]))
        going[slot].taps.append(rows[row : row + 1])
        going[slot].likely.append(step.likely[row : row + 1])


def half(taps: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return features in float16, clipped to its range."""
    return np.clip(taps, -65504.0, 65504.0).astype(np.float16)


def _finish(going: dict[int, _Going], ends: frozenset[int], writer: AnswerWriter, progress: Progress) -> None:
    for slot, one in list(going.items()):
        ended = one.ending(ends)
        if ended is None:
            continue
        record = {
            "number": one.prompt.number,
            "kind": KINDS.index(one.prompt.kind),
            "held_out": int(one.prompt.held_out),
            "ended": ENDINGS.index(ended),
        }
        writer.add(record, np.array(one.ids, np.uint32), np.concatenate(one.taps), np.concatenate(one.likely))
        progress.answers += 1
        progress.answered += len(one.ids) - one.asked
        del going[slot]
