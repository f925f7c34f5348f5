"""Serve POST /complete: completions at an editor's cursor. `code/fim` makes the prompt and decides where text ends."""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.infill_plan import InfillPlan, InfillPlanner
from localdflash.code.fim.prompt import Gap
from localdflash.code.next_edit.prediction import EditPrompt, plan_prediction
from localdflash.engine.sampling import SampledToken
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.completion_request import INFILL_TEMPERATURE, prepare_infill
from localdflash.server.api.generation import Choice, GenerationRequest, collect, params_of, pieces, timings
from localdflash.server.api.http_responses import EventStream, json_of
from localdflash.server.api.schemas import CompleteRequest
from localdflash.text.stream import UNSOUND
from localdflash.text.syntax import language_of

Event = dict[str, Any]
_CHOICE_FIELDS = ("finish", "confidence", "score", "tokens")


async def complete(http: HttpRequest, state: AppState, body: CompleteRequest) -> Response:
    """Serve POST /complete: text at the cursor."""
    loaded = await state.ready("completion", body.model)
    if body.mode == "edit" or (body.stream and loaded.edit_format()):
        return EventStream(_predict_edit(state, loaded, body))
    plan = await state.prepare(loaded, plan_infill, state.infill_planner(loaded), body)
    if await http.is_disconnected():
        raise ClientDisconnect  # starting would cancel the newer request for which an editor drops this one
    generation = replace(prepare_infill(loaded, plan), document=body.document or None)
    explanation = {"model": loaded.files.id, **(plan.prompt.explain() if body.explain else {})}
    if body.stream:
        return EventStream(_with_explanation(stream_answers(state, generation, body.count), explanation))
    return await json_of(http, _whole(state, generation, body.count, explanation))


def plan_infill(planner: InfillPlanner, body: CompleteRequest) -> InfillPlan:
    """Plan the completions of a request; see `InfillPlanner.plan` for errors."""
    assert body.mode != "edit"  # `complete` predicts these
    gap = Gap(
        " ".join(body.path.split()),
        language_of(body.path, body.language),
        body.prefix,
        body.middle,
        body.suffix,
        first_line=body.first_line,
        closers=body.closed,
    )
    return planner.plan(
        gap,
        _pieces(body),
        lookup_texts=body.copies,
        mode=body.mode,
        max_tokens=body.max_tokens,
        params=params_of(body, INFILL_TEMPERATURE),
        count=body.count if body.max_tokens else 1,  # a request for 0 tokens only fills the KV cache
        min_probability=body.least_sure,
    )


async def _predict_edit(state: AppState, loaded: LoadedPair, body: CompleteRequest) -> AsyncGenerator[Event]:
    """Yield one event with the changes that the pair predicts; in other modes, an empty answer that says so."""
    event: Event = {"index": 0, "text": "", "model": loaded.files.id, "stop": True}
    prompt = await asyncio.to_thread(_plan_edit, loaded, body) if body.mode == "edit" else None
    if prompt is None:
        yield {**event, "finish": "refused" if body.mode == "edit" else "next_edit"}
        return
    request, end = prompt.request, prompt.form.answer_end
    stops = (end,) if end else ()
    generation = GenerationRequest(loaded, [request], stops, urgent=True, document=body.document or None)
    (choice,) = await collect(state, generation)
    is_complete = choice.finish == "stop" and bool(choice.stop_string or not end)
    changes = prompt.changes(choice.text) if is_complete else None
    finish = "malformed" if choice.finish == "stop" and changes is None else choice.finish
    stats = {"tokens": request.stats.tokens, "tau": round(request.stats.tau, 3), "timings": timings([request])}
    yield {**event, "text": choice.text, "changes": changes or [], "finish": finish, **stats}


def _plan_edit(loaded: LoadedPair, body: CompleteRequest) -> EditPrompt | None:
    if (form := loaded.edit_format()) is None:
        raise ModelError(f"{loaded.files.id} does not predict edits; docs/models.md lists models that do")
    before, after = (text.replace("\r\n", "\n") for text in (body.prefix + body.middle, body.suffix))
    return plan_prediction(form, loaded.tokenizer, " ".join(body.path.split()), before, after, _pieces(body))


def _pieces(body: CompleteRequest) -> list[ContextPiece]:
    return [ContextPiece(one.kind, " ".join(one.name.split()), one.text, one.weight) for one in body.context]


@dataclass
class _AnswerProgress:
    """Progress of one answer."""

    index: int = 0  # among the sent answers
    # Probability of its first token, which predicts better than those of more tokens whether its first word is right.
    confidence: float | None = None
    unsent: list[Event] = field(default_factory=list)  # events with text, not sent yet

    def add(self, chosen: Sequence[SampledToken]) -> None:
        """Record the probability of the first token."""
        if chosen and self.confidence is None:
            self.confidence = round(math.exp(chosen[0].logprob), 4)


async def stream_answers(state: AppState, generation: GenerationRequest, count: int) -> AsyncGenerator[Event]:
    """Yield the events of up to `count` different answers, the first while it grows, the others once they have ended.

    Repeated answers are left out, and blank ones too unless they are the last. If only the best answer is wanted, its
    events follow when all have ended.
    """
    if generation.best:
        for event in await _best_answer(state, generation):
            yield event
        return
    progress, ends, texts = _AnswerProgress(), list[Event](), list[str]()
    async with aclosing(pieces(state, generation)) as source:
        async for piece in source:
            progress.add(piece.chosen)
            if piece.text:
                event = {"index": progress.index, "text": piece.text, "confidence": progress.confidence}
                progress.unsent.append({**event, "tokens": piece.choice.request.stats.tokens})
            is_repeated = piece.is_last and piece.choice.text in texts
            if (not texts or piece.is_last) and not is_repeated:
                for event in progress.unsent:
                    yield event
                progress.unsent.clear()
            if not piece.is_last:
                continue
            is_final = piece.choice.index == len(generation.requests) - 1 or piece.choice.finish == "cancelled"
            is_sent = not is_repeated and (is_final or bool(piece.choice.text.strip()))
            if is_sent:
                texts.append(piece.choice.text)
            stop = is_final or len(texts) == count
            if is_sent:
                ends.append({**_end_event(piece.choice, progress), "stop": stop})
                yield ends[-1]
            elif (
                stop
            ):  # repeat the first answer's end with `stop`, but without `finish`: it does not end another answer
                yield {name: ends[0][name] for name in ("index", "text", "tokens", "confidence")} | {"stop": True}
            if stop:
                return
            progress = _AnswerProgress(len(texts))


async def _best_answer(state: AppState, generation: GenerationRequest) -> list[Event]:
    """Return the events of the sound answer of the highest score; of the first one with text if none is sound.

    An error of a later answer is ignored if there is a sound one.
    """
    best, best_progress, progress = None, _AnswerProgress(), _AnswerProgress()
    try:
        async with aclosing(pieces(state, generation)) as source:
            async for piece in source:
                progress.add(piece.chosen)
                if not piece.is_last:
                    continue
                choice = piece.choice
                # The score of a sound answer is the highest so far: others were ended.
                if best is None or choice.is_sound or (choice.text.strip() and not best.text.strip()):
                    best, best_progress = choice, progress
                progress = _AnswerProgress()
    except LocaldflashError:
        if best is None or not best.is_sound:
            raise
    if best is None:
        return []
    event = {"index": 0, "text": best.text, "confidence": best_progress.confidence}
    texts = [event | {"tokens": best.request.stats.tokens}] if best.text else []
    return [*texts, {**_end_event(best, best_progress), "stop": True}]


def _end_event(choice: Choice, progress: _AnswerProgress) -> Event:
    stats, stopped = choice.request.stats, choice.ending.reason if choice.ending else ""
    is_unsound = stopped == UNSOUND and choice.finish != "cancelled"
    return {
        "index": progress.index,
        "text": "",
        "finish": stopped if is_unsound or (choice.finish == "stop" and stopped) else choice.finish,
        "tokens": stats.tokens,
        "confidence": progress.confidence,
        "score": round(choice.score, 3),
        "tau": round(stats.tau, 3),
        "timings": timings([choice.request]),
    }


async def _with_explanation(events: AsyncGenerator[Event], explanation: Event) -> AsyncGenerator[Event]:
    """Yield the events; add the explanation to the last event of each answer."""
    async with aclosing(events) as source:
        async for event in source:
            yield {**event, **explanation} if "finish" in event else event


async def _whole(state: AppState, generation: GenerationRequest, count: int, explanation: Event) -> Event:
    """Return all answers as one JSON object."""
    choices, text = list[Event](), ""
    async with aclosing(stream_answers(state, generation, count)) as source:
        async for event in source:
            text += event["text"]
            if "finish" in event:
                choices.append({"text": text} | {name: event[name] for name in _CHOICE_FIELDS})
                text = ""
    ran = [request for request in generation.requests if request.stats.steps or request.finish_reason]
    return {"choices": choices, "timings": timings(ran), **explanation}
