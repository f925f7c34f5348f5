"""Both sides of the comparison, with a common interface: `ask` returns the text, tokens and time of an answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from localdflash.base.files import paths
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.bench_run import prompt_ids
from localdflash.lab.bench.chat import chat_prompts
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server import private
from localdflash.server.address import Address
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.text.chat_template import TemplateMessage, encode_chat


@dataclass(frozen=True)
class PeerQuestion:
    """Prompt as ids; with a schema the answer is JSON of the schema."""

    category: str
    ids: Sequence[int]
    max_tokens: int
    schema: dict[str, Any] | None = None


class PeerAnswer(NamedTuple):
    """Text, with its timed tokens and verify steps."""

    text: str
    tokens: int
    ms: float
    verifies: int


def questions(options: Options, suite: str, limit: int | None) -> list[PeerQuestion]:
    """Return the prompts of a suite of `localdflash bench`, encoded for the pair's target."""
    with LoadedPair(replace(options, draft=False)) as loaded:
        if suite == "code":
            of_code = prompt_set.load(limit)
            return [PeerQuestion(p.category, prompt_ids(loaded, p)[0], p.max_tokens) for p in of_code]
        tokenizer, template = loaded.tokenizer, loaded.tokenizer.chat_template() or ""
        conversations = [(p, [TemplateMessage("user", p.question)]) for p in chat_prompts.load(limit)]
        return [
            PeerQuestion(p.category, encode_chat(tokenizer, template, m), p.max_tokens, p.schema)
            for p, m in conversations
        ]


@dataclass(frozen=True)
class DaemonSide:
    """Our daemon, through its socket, with llama-server's request format."""

    client: Client
    draft: bool = True

    @classmethod
    @contextmanager
    def start(cls, options: Options) -> Iterator[Self]:
        """Start a private daemon."""
        pair = str(Path(options.pair).absolute()) if options.pair.endswith(".gguf") else options.pair
        spec = EngineSpec({"pair": pair, "backend": options.backend, "threads": options.threads})
        path = paths.private_socket()
        child = private.start(spec, path, lambda stage: None)
        try:
            yield cls(Client(Address(path)))
        finally:
            private.end(child, path)

    def plain(self) -> Self:
        """Return this daemon's side without drafts."""
        return replace(self, draft=False)

    def ask(self, question: PeerQuestion, max_tokens: int) -> PeerAnswer:
        """Answer greedily."""
        body = {"prompt": list(question.ids), "n_predict": max_tokens, "temperature": 0, "draft": self.draft}
        schema = {"json_schema": question.schema} if question.schema else {}
        answer = self.client.post("/completion", {**body, **schema})
        timings = answer["timings"]
        return PeerAnswer(answer["content"], timings["predicted_n"], timings["predicted_ms"], timings["steps"])


@dataclass(frozen=True)
class ServerSide:
    """`llama-server`, run by `peer_llama_server.py`; its times begin with the first token."""

    server: Any

    def ask(self, question: PeerQuestion, max_tokens: int) -> PeerAnswer:
        """Answer greedily."""
        answer = self.server.complete(question.ids, max_tokens, question.schema)
        timings = answer["timings"]
        tokens = max(timings["predicted_n"] - 1, 0)
        verifies = tokens - timings.get("draft_n_accepted", 0)
        return PeerAnswer(answer["content"], tokens, timings["predicted_ms"], verifies)


Side = DaemonSide | ServerSide


def report(answers: Sequence[tuple[str, dict[str, PeerAnswer]]], ours: str) -> dict[str, Any]:
    """Return each side's rate, tokens per verify step, our rate relative to it, and how often its text equals ours."""
    categories = dict.fromkeys(category for category, _ in answers)
    result: dict[str, Any] = {"prompts": len(answers), "sides": {}}
    for name in answers[0][1]:
        result["sides"][name] = {
            "tok_s": round(_rate(answers, name), 1),
            "tau": round(_tau([by_side[name] for _, by_side in answers]), 3),
            "ours_over_this": round(_rate(answers, ours) / _rate(answers, name), 3),
            "ours_over_this_by_category": {
                category: round(_rate(some, ours) / _rate(some, name), 3)
                for category in categories
                if (some := [one for one in answers if one[0] == category])
            },
            "same_text": _same(answers, name, ours),
            "same_as_own_plain": _same(answers, name, f"{name.split(maxsplit=1)[0]} plain"),
        }
    return result


def _same(answers: Sequence[tuple[str, dict[str, PeerAnswer]]], name: str, other: str) -> str:
    return f"{sum(by_side[name].text == by_side[other].text for _, by_side in answers)}/{len(answers)}"


def _rate(answers: Sequence[tuple[str, dict[str, PeerAnswer]]], name: str) -> float:
    """Return the tokens per second over all answers."""
    return 1e3 * sum(by_side[name].tokens for _, by_side in answers) / sum(by_side[name].ms for _, by_side in answers)


def _tau(answers: Sequence[PeerAnswer]) -> float:
    return sum(answer.tokens for answer in answers) / max(sum(answer.verifies for answer in answers), 1)
