"""Let the target answer many prompts in parallel, greedily; store ids, hidden-state features and likeliest tokens.

After a restart, prompts that have an answer are skipped. An answer that repeats itself ends early.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import TrainingError
from localdflash.lab.train.questions import Question
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.stored_answers import ENDINGS, AnswerWriter
from localdflash.lab.train.training_prompts import COMPLETIONS, KINDS
from localdflash.text.chat_template import Role, TemplateMessage, encode_chat
from localdflash.text.fim_formats import FimFormat, stop_ids
from localdflash.text.tokenizer import Tokenizer

FLUSH_SECONDS = 30.0  # between writes of stored answers to the disk
# Limits in token ids; prompts that are longer are left out.
MAX_QUESTION = 352
MAX_COMPLETION_PROMPT = 544
MAX_ANSWER = 256
MAX_COMPLETION = 96
MAX_ANSWER_BY_KIND = dict.fromkeys(COMPLETIONS, MAX_COMPLETION) | {
    "function": 192,
    "explain": 192,
    "tests": 224,
    "json": 192,
}
CONTEXT = 640  # tokens that a slot (one of the parallel sequences) has room for: the longest prompt and answer
MAX_PERIOD, MIN_REPEATED_IDS = 40, 48  # maximum length of a repeated sequence; minimum length of all repetitions


class ParallelStep(NamedTuple):
    """Result of a step of N slots."""

    taps: NDArray[np.float32]  # features [N, n_taps * H]
    newest: NDArray[np.int64]  # [N], likeliest id; the lowest of equally likely ids
    likely: NDArray[np.void]  # LIKELY [N, LIKELY_COUNT]


class Parallel(Protocol):
    """Engine that decodes `sequences` conversations, each in a slot; features are the outputs of some layers."""

    sequences: int

    def begin(self, slot: int, prompt: Sequence[int]) -> NDArray[np.float32]:
        """Prefill all but the last of a prompt's T tokens; return their features [T - 1, n_taps * H]."""

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> ParallelStep:
        """Decode one token in each of these slots; `tokens` are the newest, not yet decoded ones."""

    def close(self) -> None:
        """Free the engine's resources; it cannot be used afterwards."""


@dataclass
class OpenAnswer:
    """Answer that the target is generating, or has generated."""

    prompt: Question
    prompt_length: int  # ids of the prompt
    ids: list[int]
    taps: list[NDArray[np.float16]] = field(default_factory=list)  # features [rows, width] of all ids but the last
    likely: list[NDArray[np.void]] = field(default_factory=list)  # LIKELY [rows, LIKELY_COUNT] of the answer's tokens

    def end_reason(self, ends: frozenset[int]) -> str | None:
        """Return why the answer has ended, one of ENDINGS; None if it continues."""
        if len(self.ids) == self.prompt_length:
            return None
        if self.ids[-1] in ends:
            return "end"
        if len(self.ids) - self.prompt_length >= max_answer(self.prompt.kind):
            return "limit"
        return "repeats" if len(self.ids) % 8 == 0 and ends_in_repetition(self.ids[self.prompt_length :]) else None

    def cut_at_repetition(self) -> None:
        """Shorten a generated answer that ends in a repetition to where `end_reason` ends it."""
        if ends_in_repetition(self.ids[self.prompt_length :]):
            for length in range(-(-self.prompt_length // 8) * 8 + 8, len(self.ids), 8):
                if ends_in_repetition(self.ids[self.prompt_length : length]):
                    del self.ids[length:]
                    return


def max_answer(kind: str) -> int:
    """Return the maximum number of ids of an answer to a prompt of this kind."""
    return MAX_ANSWER_BY_KIND.get(kind, MAX_ANSWER)


def ends_in_repetition(ids: Sequence[int]) -> bool:
    """Return whether the ids end in three or more copies of a sequence, with at least `MIN_REPEATED_IDS` ids in all."""
    row = np.asarray(ids[-3 * MAX_PERIOD :])
    for period in range(1, min(MAX_PERIOD, len(row) // 3) + 1):
        span = max(3 * period, MIN_REPEATED_IDS)
        if span <= len(row) and bool((row[-span + period :] == row[-span:-period]).all()):
            return True
    return False


class PromptEncoder:
    """Encoder of questions by the target's chat template, or of FIM prompts; tokens in `ends` end an answer."""

    def __init__(self, path: Path, fim: FimFormat | None = None) -> None:
        self.tokenizer = Tokenizer.load(path)
        self.template = self.tokenizer.chat_template() or ""
        self.ends = stop_ids(fim, self.tokenizer) if fim else self.tokenizer.ends
        self.longest = MAX_COMPLETION_PROMPT if fim else MAX_QUESTION
        if not self.template and not fim:
            raise TrainingError(f"{path}: no chat template, which chat prompts need; choose another target")

    def encode(self, prompt: Question) -> list[int]:
        """Return the ids of a question with its earlier turns, or of a completion's prompt."""
        if prompt.ids:
            return list(prompt.ids)
        roles: Iterator[Role] = cycle(("user", "assistant"))
        turns = [TemplateMessage(role, text) for role, text in zip(roles, (*prompt.before, prompt.text), strict=False)]
        return encode_chat(self.tokenizer, self.template, turns)


@dataclass
class Progress:
    """Progress of answering. Methods take `unfinished`, the number of ids of answers in progress."""

    requested: int  # answer ids to store in total
    answers: int  # number of stored answers
    answered: int  # ids of stored answers
    before: int  # ids of the answers that earlier runs stored
    too_long: int = 0  # number of prompts that were left out
    began: float = field(default_factory=time.monotonic)

    def share(self, unfinished: int) -> float:
        """Return the finished share of the requested ids."""
        return min(1.0, (self.answered + unfinished) / self.requested)

    def line(self, unfinished: int) -> str:
        """Return one line with counts, rate and remaining time."""
        rate = (self.answered - self.before + unfinished) / max(time.monotonic() - self.began, 1e-3)
        line = f"{self.answers:,} answers, {self.answered:,} of {self.requested:,} answer tokens"
        if not rate:  # nothing was answered in this run yet
            return line
        left = max(0, self.requested - self.answered - unfinished) / rate / 60
        return f"{line}, {rate:.1f} tokens/s, {left:.0f} min left"


def answer_prompts(
    target: Parallel,
    encoder: PromptEncoder,
    prompts: Sequence[Question],
    writer: AnswerWriter,
    tokens: int,
    reporter: Reporter,
) -> None:
    """Answer prompts until about `tokens` answer ids are stored, including those of earlier runs, or none is left."""
    progress, waiting = begin(encoder, prompts, writer, tokens)
    open_answers: dict[int, OpenAnswer] = {}
    flushed = time.monotonic()
    while True:
        if progress.answered < tokens:
            _fill_slots(target, waiting, open_answers)
        _store_finished(open_answers, encoder.ends, writer, progress)
        if not open_answers:
            if progress.answered >= tokens:
                break
            if not _fill_slots(target, waiting, open_answers):
                break
            continue
        _step(target, open_answers)
        now = time.monotonic()
        if now - flushed > FLUSH_SECONDS:
            writer.flush()
            flushed = now
        unfinished = sum(len(each.ids) - each.prompt_length for each in open_answers.values())
        reporter.move(progress.share(unfinished), progress.line(unfinished))
    end(encoder, writer, progress, reporter)


def begin(
    encoder: PromptEncoder, prompts: Sequence[Question], writer: AnswerWriter, tokens: int
) -> tuple[Progress, Iterator[tuple[Question, list[int]]]]:
    """Return the progress of earlier runs, and the prompts that have no answer yet, with their ids."""
    stored = writer.stored
    done = set(stored["number"].tolist())
    before = int((stored["length"].astype(np.int64) - stored["prompt"]).sum())
    progress = Progress(tokens, len(stored), before, before)
    return progress, _encode_prompts(encoder, (p for p in prompts if p.number not in done), progress)


def end(encoder: PromptEncoder, writer: AnswerWriter, progress: Progress, reporter: Reporter) -> None:
    """Make all answers durable and report their number."""
    writer.flush()
    reporter.say(progress.line(0))
    if progress.too_long:
        reporter.say(f"{progress.too_long:,} prompts of more than {encoder.longest} tokens were left out")


def _encode_prompts(
    encoder: PromptEncoder, prompts: Iterator[Question], progress: Progress
) -> Iterator[tuple[Question, list[int]]]:
    for prompt in prompts:
        ids = encoder.encode(prompt)
        if len(ids) <= encoder.longest:
            yield prompt, ids
        else:
            progress.too_long += 1


def _fill_slots(
    target: Parallel, waiting: Iterator[tuple[Question, list[int]]], open_answers: dict[int, OpenAnswer]
) -> bool:
    """Give every free slot a prompt; return whether any slot is in use."""
    for slot in range(target.sequences):
        if slot in open_answers:
            continue
        next_prompt = next(waiting, None)
        if next_prompt is None:
            break
        prompt, ids = next_prompt
        open_answers[slot] = OpenAnswer(prompt, len(ids), list(ids), [to_float16(target.begin(slot, ids))])
    return bool(open_answers)


def _step(target: Parallel, open_answers: dict[int, OpenAnswer]) -> None:
    slots = sorted(open_answers)
    step = target.step(slots, [open_answers[slot].ids[-1] for slot in slots])
    rows = to_float16(step.taps)
    for row, slot in enumerate(slots):
        open_answers[slot].ids.append(int(step.newest[row]))
        open_answers[slot].taps.append(rows[row : row + 1])
        open_answers[slot].likely.append(step.likely[row : row + 1])


def to_float16(taps: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return features in float16, clipped to the range of float16."""
    return np.clip(taps, -65504.0, 65504.0).astype(np.float16)


def _store_finished(
    open_answers: dict[int, OpenAnswer], ends: frozenset[int], writer: AnswerWriter, progress: Progress
) -> None:
    for slot, answer in list(open_answers.items()):
        if reason := answer.end_reason(ends):
            store(answer, reason, writer, progress)
            del open_answers[slot]


def store(answer: OpenAnswer, reason: str, writer: AnswerWriter, progress: Progress) -> None:
    """Store a finished answer; `reason` is one of ENDINGS."""
    record = {
        "number": answer.prompt.number,
        "kind": KINDS.index(answer.prompt.kind),
        "held_out": int(answer.prompt.held_out),
        "ended": ENDINGS.index(reason),
    }
    writer.add(record, np.array(answer.ids, np.uint32), np.concatenate(answer.taps), np.concatenate(answer.likely))
    progress.answers += 1
    progress.answered += len(answer.ids) - answer.prompt_length
