"""Run what was asked for: pieces of text with what is known about them, choice after choice."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from localdflash.base.errors import EngineGone
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.sampling import Chosen
from localdflash.engine.stats import Stats
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask
from localdflash.server.api.http_errors import ApiError
from localdflash.text.stream import Ending, Spelling


@dataclass
class Choice:
    """One answer: its text so far, and at the end why it ended."""

    index: int
    request: Request
    ids: list[int] = field(default_factory=list)
    text: str = ""
    chosen: list[Chosen] = field(default_factory=list)
    finish: str = ""  # "stop", "length" or "cancelled"
    stop_string: str = ""  # the one that ended it, if one did
    ending: Ending | None = None  # what else may have ended it


@dataclass(frozen=True)
class ChoicePiece:
    """What one step added to a choice; the last piece of a choice has neither text nor step."""

    choice: Choice
    text: str = ""
    chosen: Sequence[Chosen] = ()
    step: Step | None = None


async def pieces(state: AppState, ask: Ask) -> AsyncGenerator[ChoicePiece]:
    """Run the choices one after another. Closing this stops the engine within one step."""
    began = time.perf_counter()
    if ask.document:
        state.newest[ask.document] = ask
    for index, request in enumerate(ask.requests):
        if ask.document and state.newest.get(ask.document) is not ask:  # this choice would cancel the newer request
            yield ChoicePiece(Choice(index, request, finish="cancelled"))
            return
        if not (worker := await state.engines.runs(ask.loaded)):
            raise ApiError(503, "another model was loaded meanwhile: ask again", code="model_changed", Retry_After="1")
        choice = Choice(index, request)
        tokens = _Told(ask.spelling(), request.ends)
        lines = _Indented(ask.least_indent)
        ending = ask.ending() if ask.ending else None
        answer = worker.stream(
            request,
            ask.stops,
            urgent=ask.urgent,
            document=ask.document,
            seconds=ask.seconds,
            ending=ending,
            spelling=ask.makes_text,
        )
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                if delta.step and not choice.ids:
                    state.metrics.first_token(time.perf_counter() - began)
                choice.ids += delta.step.tokens if delta.step else ()
                text = lines.push(delta.text)
                chosen = tokens.push(delta.chosen, text)
                choice.text += text
                choice.chosen += chosen
                yield ChoicePiece(choice, text, chosen, delta.step)
                if lines.ended:
                    break
        if request.finish == "cancelled" and not (lines.ended or ask.document):
            if worker.taken:
                told = f"{worker.called} made room for another chat's model"
                raise ApiError(503, told, code="model_taken", Retry_After="1")
            raise EngineGone("the engine stops: ask again")  # nobody else cancels while somebody listens
        rest = lines.finish()
        choice.text += rest
        choice.finish = "stop" if lines.ended else _finish(request)
        choice.ending = ending
        choice.stop_string = _stop_string(choice, ask)
        kept = [] if lines.ended or choice.stop_string or (ending and ending.ended) else tokens.finish()
        choice.chosen += kept
        if rest or kept:
            yield ChoicePiece(choice, rest, kept)
        yield ChoicePiece(choice)
        if choice.finish == "cancelled":
            return


async def collect(state: AppState, ask: Ask) -> list[Choice]:
    """All choices, complete."""
    async with aclosing(pieces(state, ask)) as source:
        found = {piece.choice.index: piece.choice async for piece in source}
    return list(found.values())


def _finish(request: Request) -> str:
    return "length" if request.finish in ("length", "context") else request.finish or "cancelled"


def _stop_string(choice: Choice, ask: Ask) -> str:
    """The stop string that comes where the text ends."""
    if choice.finish != "stop":
        return ""
    if choice.ids[-1] in choice.request.ends:
        return ""
    spelling = ask.spelling()
    whole = spelling.push(choice.ids) + spelling.finish()
    return next((stop for stop in ask.stops if whole.startswith(stop, len(choice.text))), "")


class _Told:
    """Keeps track of which tokens belong to the text sent so far: those whose bytes begin in it."""

    def __init__(self, spelling: Spelling, ends: frozenset[int]) -> None:
        self._spelling, self._ends = spelling, ends
        self._waiting: list[Chosen] = []
        self._told = self._spelled = 0  # bytes

    def push(self, chosen: Sequence[Chosen], text: str) -> list[Chosen]:
        """The tokens that this text, which came with these tokens, completes."""
        self._waiting += (one for one in chosen if one.token not in self._ends)
        self._told += len(text.encode())
        known = []
        while self._waiting and self._spelled < self._told:
            known.append(one := self._waiting.pop(0))
            self._spelled += len(self._spelling.push([one.token]).encode())
        return known

    def finish(self) -> list[Chosen]:
        """The remaining tokens, for an answer that no stop string has cut."""
        waiting, self._waiting = self._waiting, []
        return waiting


class _Indented:
    """Passes text through up to the first line, after the first one, that is less indented; 0 lets everything pass."""

    def __init__(self, least: int) -> None:
        self.ended = False
        self._least, self._held = least, ""

    def push(self, text: str) -> str:
        """The text that is certain by now; blanks at the start of a line are held back."""
        if not self._least or self.ended:
            return text
        lines = (self._held + text).split("\n")
        for number, line in enumerate(lines[1:], 1):
            code = line.lstrip(" \t")
            if code and len(line) - len(code) < self._least:
                self.ended, self._held = True, ""
                return "\n".join(lines[:number])
        starts_a_line = len(lines) > 1 and not lines[-1].strip(" \t")
        self._held = "\n" + lines.pop() if starts_a_line else ""
        return "\n".join(lines)

    def finish(self) -> str:
        """The text held back so far, at the end."""
        held, self._held = self._held, ""
        return held


def cached_tokens(request: Request) -> int:
    """How many tokens of the prompt came out of a cache. The last one never does: the first step computes it."""
    return max(len(request.ids) - 1 - request.computed, 0)


def timings(requests: Sequence[Request]) -> dict[str, Any]:
    """How the answer was made, in llama-server's words and in ours. Times are milliseconds."""
    stats = Stats()
    for request in requests:
        stats.merge(request.stats)
    cached, prompt_ms = sum(map(cached_tokens, requests)), sum(r.prefill_ms for r in requests)
    prompt = sum(len(r.ids) for r in requests) - cached
    return {
        "queue_ms": round(sum(request.waited_ms for request in requests), 3),
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": _over(prompt_ms, prompt),
        "prompt_per_second": _over(prompt * 1e3, prompt_ms),
        "predicted_n": stats.tokens,
        "predicted_ms": round(stats.total_ms, 3),
        "predicted_per_token_ms": _over(stats.total_ms, stats.tokens),
        "predicted_per_second": _over(stats.tokens * 1e3, stats.total_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "steps": stats.steps,
        "tau": round(stats.tau, 3),
        "accept_by_slot": stats.acceptance(),
        "steps_by_drafter": stats.steps_by_drafter,
    }


def _over(a: float, b: float) -> float:
    return round(a / b, 3) if b else 0.0
