"""Engine for the language server that records a pair's greedy answers in a file and cuts them by today's rules.

Unknown answers are generated. An answer takes `FIRST` seconds, and `EACH` per token, on a clock that may be virtual.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from localdflash.code.fim.choices import continue_past_end
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.engine.generate import Generation, Request
from localdflash.engine.pair import Step
from localdflash.engine.sampling import SampledToken
from localdflash.loading.load_pair import LoadedPair
from localdflash.lsp.engine_completer import CompletionClient, CompletionSource, Event
from localdflash.server.answer_stream import TextDelta
from localdflash.server.api import complete_endpoint
from localdflash.server.api.api_state import AppState
from localdflash.server.api.completion_request import prepare_infill
from localdflash.server.api.schemas import CompleteRequest
from localdflash.text.stream import AnswerText

FIRST, EACH = 0.030, 0.004  # seconds, as of a small pair on a laptop
NO_END = "\0"  # stands for the word in the key of an answer that must not end at once
AT_ONCE = 8  # tokens generated at a time


class RecordedAnswer(msgspec.Struct):
    """Tokens that a pair generated after one prompt, with their log probabilities; `ended`: the answer is complete."""

    key: str
    tokens: list[int]
    logprobs: list[float]
    ended: bool


class Records:
    """Answers of one pair, in a file with one line per answer."""

    def __init__(self, loaded: LoadedPair, path: Path) -> None:
        self._loaded, self._path = loaded, path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self._records = {
            record.key: record for record in (msgspec.json.decode(line, type=RecordedAnswer) for line in lines)
        }

    def of(self, request: Request, word: str, count: int) -> RecordedAnswer:
        """Return at least `count` tokens of a request's answer, unless it is shorter; the answer begins with `word`."""
        key = hashlib.sha256(json.dumps([list(request.ids), word]).encode()).hexdigest()[:24]
        record = self._records.get(key) or RecordedAnswer(key, [], [], ended=False)
        while len(record.tokens) < count and not record.ended:
            self._lengthen(record, request)
        return record

    def _lengthen(self, record: RecordedAnswer, request: Request) -> None:
        constraint = None if record.tokens else request.constraint
        continuation = Request(
            [*request.ids, *record.tokens], AT_ONCE, ends=request.ends, constraint=constraint, top_logprobs=0
        )
        generation = Generation(continuation)
        generation.prefill(self._loaded.pair)
        while generation.step(self._loaded.pair):
            pass
        for sampled in generation.sampler.sampled_tokens:
            record.tokens.append(sampled.token)
            record.logprobs.append(round(sampled.logprob, 4))
        record.ended = continuation.finish_reason != "length"
        self._records[record.key] = record
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")


class RecordedEngine(CompletionClient):
    """Completion client of the language server, in place of the daemon."""

    def __init__(self, loaded: LoadedPair, path: Path) -> None:
        super().__init__(lambda _: None, lambda _: None)
        self._loaded, self._planner, self._records = loaded, InfillPlanner(loaded, patience=None), Records(loaded, path)

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        return cast(CompletionSource, self)

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        """See `CompletionClient`: what `POST /complete` answers."""
        request = msgspec.convert(dict(body), CompleteRequest)
        plan = complete_endpoint.plan_infill(self._planner, request)
        worker = _Worker(self._loaded, self._records, plan.word)
        generation = prepare_infill(self._loaded, plan)
        async with aclosing(complete_endpoint.stream_answers(worker.state, generation, request.count)) as events:
            async for event in events:
                yield cast(Event, event)


class _Worker:
    """Replacement of `PairWorker`, and of the server's state."""

    def __init__(self, loaded: LoadedPair, records: Records, word: str) -> None:
        self._loaded, self._records, self._word, self.is_evicting = loaded, records, word, False
        metrics = SimpleNamespace(record_first_token=lambda _: None)
        self.state = cast(AppState, SimpleNamespace(newest={}, metrics=metrics, engines=self))

    def worker_of(self, _: LoadedPair) -> "_Worker":
        return self

    async def stream(self, request: Request, text: AnswerText, **_: Any) -> AsyncGenerator[TextDelta]:
        """See `PairWorker.stream`."""
        await asyncio.sleep(FIRST)
        current, word, begins, ids = request, self._word, 0, list(request.ids)
        for number in range(request.max_tokens):
            record = self._records.of(current, word, number - begins + 1)
            if number - begins == len(record.tokens):
                break
            token, logprob = record.tokens[number - begins], record.logprobs[number - begins]
            ids.append(token)
            await asyncio.sleep(EACH)
            step = Step([token], "none", 0, 0, 0.0, EACH * 1e3)
            request.stats.add(step, EACH * 1e3)
            yield TextDelta(text.push([token], [logprob]), step, [SampledToken(token, logprob, ())])
            if text.stopped:
                break
            if token in request.ends and self._loaded.vocab_size and text.resumes():
                current, word, begins = continue_past_end(current, ids, self._loaded.vocab_size), NO_END, number + 1
                ids.pop()
        request.finish_reason = "length" if request.stats.tokens == request.max_tokens else "stop"
        if rest := text.finish():
            yield TextDelta(rest, None)
