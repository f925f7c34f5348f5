"""Pair whose target generates a script token by token, with a vocabulary of a model family."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from localdflash.engine.draft import Draft
from localdflash.engine.pair import TargetFeatures, Verification
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.running_pair import Running, compose
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker
from localdflash.text.tokenizer import Tokenizer
from tests.support.costs import drafting_pays
from tests.support.served import Client


class ScriptedTarget:
    """See `Target`. Generates `script` after any prompt; `prompts` records prompt lengths."""

    is_recurrent, context, max_width = False, 2000, 9

    def __init__(self, vocab_size: int, script: Sequence[int]) -> None:
        self.vocab_size, self.script, self.length = vocab_size, list(script), 0
        self.prompts: list[int] = []
        self._rows = 0  # tokens verified, until `keep`

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        self.length += len(ids)
        return None

    def end_prompt(self) -> None:
        self.prompts.append(self.length)

    def verify(self, anchor: int, draft: Draft) -> Verification:
        self._rows = 1 + len(draft.tokens)
        logits = np.zeros((self._rows, self.vocab_size), np.float32)
        at = self.length - self.prompts[-1]
        for row in range(self._rows):
            logits[row, self.script[min(at + row, len(self.script) - 1)]] = 50.0
        return Verification(logits, None)

    def keep(self, rows: int) -> None:
        self.length += rows
        self._rows = 0

    def crop(self, length: int) -> None:
        self.length = length

    def assume_length(self, length: int) -> bool:
        return False

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes, length: int) -> None:
        self.length = length


class AnsweringTarget(ScriptedTarget):
    """Scripted target whose script depends on the prompt: `answer` maps the prompt's text to parts."""

    context = 200_000

    def __init__(self, tokenizer: Tokenizer, answer: Callable[[str], Sequence[str]]) -> None:
        super().__init__(tokenizer.vocab_size, [0])
        self._tokenizer, self._answer = tokenizer, answer
        self._ids: list[int] = []
        self._verified: list[int] = []

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        self._ids += ids
        return super().extend(ids)

    def end_prompt(self) -> None:
        super().end_prompt()
        text = b"".join(self._tokenizer.piece(token, special=True) for token in self._ids).decode()
        self.script = spelled(self._tokenizer, *self._answer(text))

    def verify(self, anchor: int, draft: Draft) -> Verification:
        self._verified = [anchor, *draft.tokens]
        return super().verify(anchor, draft)

    def keep(self, rows: int) -> None:
        self._ids += self._verified[:rows]
        super().keep(rows)

    def crop(self, length: int) -> None:
        del self._ids[length:]
        super().crop(length)


def spelled(tokenizer: Tokenizer, *parts: str) -> list[int]:
    """Return the ids of parts, each a special token or text."""
    return [
        token
        for part in parts
        for token in ([tokenizer.special(part)] if tokenizer.has_special(part) else tokenizer.encode(part))
    ]


@contextmanager
def scripted_pair(vocabulary: Path, *parts: str) -> Iterator[Options]:
    """Yield options that load a pair which generates these parts, then the end token."""
    tokenizer = Tokenizer.load(vocabulary)
    with _loading(vocabulary, ScriptedTarget(tokenizer.vocab_size, spelled(tokenizer, *parts))) as options:
        yield options


@contextmanager
def scripted_client(vocabulary: Path, *parts: str) -> Iterator[tuple[Client, LoadedPair]]:
    """Yield a client of an app whose pair generates these parts."""
    with scripted_pair(vocabulary, *parts) as options, _client(options) as client:
        yield client


@contextmanager
def answering_client(vocabulary: Path, answer: Callable[[str], Sequence[str]]) -> Iterator[tuple[Client, LoadedPair]]:
    """Yield a client of an app whose pair generates the parts that `answer` returns for the prompt's text."""
    target = AnsweringTarget(Tokenizer.load(vocabulary), answer)
    with _loading(vocabulary, target) as options, _client(options) as client:
        yield client


@contextmanager
def _loading(vocabulary: Path, target: ScriptedTarget) -> Iterator[Options]:
    options = Options(str(vocabulary), backend="torch", costs=drafting_pays)

    def load(*_: object) -> Running:
        pair = compose(target, [], options)
        return Running(
            pair=pair,
            host_pair=pair,
            context=target.context,
            device="cpu",
            vocab_size=target.vocab_size,
            identity=(),
            measured=dict,
            close=lambda: None,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.loading.load_pair.load_on", load)
        yield options


@contextmanager
def _client(options: Options) -> Iterator[tuple[Client, LoadedPair]]:
    metrics = Metrics()
    worker = PairWorker(options, 1_000_000, 4, metrics.observe)
    worker.start()
    loaded = asyncio.run(worker.ready())
    try:
        yield Client(create_app(Engines(worker), metrics), {}), loaded
    finally:
        worker.close()
