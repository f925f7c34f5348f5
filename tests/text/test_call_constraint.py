"""Calls of tools under a constraint: whatever the model draws, a call has the form of its family and of its tool."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import UsageError
from localdflash.engine.sampling import Constraint
from localdflash.text.answer_format import format_of
from localdflash.text.grammar import Grammars
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import Schemas, call_reader
from localdflash.text.tool_grammar import call_constraint
from tests.support.chat_formats import tool_vocabularies
from tests.support.scripted_pair import spelled
from tests.text.conftest import MakeVocabulary
from tests.text.test_tool_calls import read

__all__ = ["tool_vocabularies"]

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "days": {"$ref": "#/$defs/Days", "type": "integer"},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["days"],
        "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 9}},
    },
    "now": {},
    "now_and_then": {"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
}
OPENS = {
    "hermes": ("<tool_call>",),
    "tags": ("<tool_call>",),
    "gemma": ("<|tool_call>",),
    "harmony": ("<|channel|>", "commentary to=functions.weather ", "<|constrain|>", "json", "<|message|>"),
    "words": ("<tool_call>",),  # letters
}
Model = tuple[Tokenizer, Grammars]


@pytest.fixture(scope="module")
def models(tool_vocabularies: Mapping[str, Path]) -> dict[str, Model]:
    tokenizers = {family: Tokenizer.load(path) for family, path in tool_vocabularies.items()}
    return {family: (tokenizer, Grammars(tokenizer)) for family, tokenizer in tokenizers.items()}


def walked(tokenizer: Tokenizer, constraint: Constraint, random: np.random.Generator, most: int = 300) -> list[int]:
    """The ids that are drawn at random among those that may come, until nothing is constrained or the answer ends.

    Where text is forced, the mask has the one token that the vocabulary cuts it into, and not what begins alike.
    """
    ids: list[int] = []
    while len(ids) < most and (mask := constraint.mask()) is not None:
        forced = list(constraint.forced_tokens())
        assert constraint.count_allowed(forced) == len(forced)
        token = int(random.choice(np.flatnonzero(mask)))
        assert constraint.count_allowed([token]) == 1
        refused = random.choice(np.flatnonzero(~mask))
        assert forced or constraint.count_allowed([int(refused), token]) == 0
        ids.append(token)
        if token in tokenizer.ends:
            break
        constraint.advance(token)
    return ids


def call_of(tokenizer: Tokenizer, ids: list[int], tools: Schemas = TOOLS) -> tuple[str, Any]:
    """The one call of an answer."""
    spelling = format_of(tokenizer).start([], "", at_once="call").spelling(tokenizer)
    text = spelling.push(token for token in ids if token not in tokenizer.ends) + spelling.finish()
    reader = call_reader(tokenizer, tools)
    said, [(name, arguments)] = read(reader, [text])
    assert said == ""
    return name, json.loads(arguments)


def check(name: str, arguments: Any) -> None:
    assert name in TOOLS
    assert set(TOOLS[name].get("required", ())) <= set(arguments) <= set(TOOLS[name].get("properties", {}))
    assert arguments.get("days", 1) in range(10)
    assert arguments.get("unit", "C") in ("C", "F")
    assert isinstance(arguments.get("exact", True), bool)


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "llama", "words"])
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_must_be(models: Mapping[str, Model], family: str, seed: int) -> None:
    tokenizer, grammars = models[family]
    make = call_constraint(tokenizer, grammars, TOOLS, must=True)
    assert make
    check(*call_of(tokenizer, walked(tokenizer, make(), np.random.default_rng(seed))))


@pytest.mark.parametrize("family", sorted(OPENS))
@pytest.mark.parametrize("seed", range(2))
def test_a_call_that_may_be(models: Mapping[str, Model], family: str, seed: int) -> None:
    tokenizer, grammars = models[family]
    make = call_constraint(tokenizer, grammars, TOOLS, must=False)
    assert make
    constraint, random = make(), np.random.default_rng(seed)
    free = [*tokenizer.encode("I look. {"), *spelled(tokenizer, *OPENS[family])]
    assert constraint.count_allowed([*free, 0, 0]) == len(free)  # what comes then is another matter
    for token in free:
        assert constraint.mask() is None
        assert constraint.forced_tokens() == []
        constraint.advance(token)
    ids = walked(tokenizer, constraint, random)
    if family == "gemma":  # its arguments are its own
        name = tokenizer.spell(ids).decode().removeprefix("call:").removesuffix("{")
        assert name in TOOLS
        rest = spelled(tokenizer, "exact:true}", "<tool_call|>")
        assert constraint.count_allowed([*rest, 0]) == len(rest)
        for token in rest:
            assert constraint.mask() is None
            constraint.advance(token)
        ids += rest
        assert call_of(tokenizer, [*spelled(tokenizer, *OPENS[family]), *ids]) == (name, {"exact": True})
        return
    check(*call_of(tokenizer, [*spelled(tokenizer, *OPENS[family]), *ids]))


@pytest.mark.parametrize("family", ["hermes", "gemma", "words"])
def test_one_call_after_the_other(models: Mapping[str, Model], family: str) -> None:
    tokenizer, grammars = models[family]
    make = call_constraint(tokenizer, grammars, {"now": {}}, must=False)
    assert make
    constraint = make()
    for _ in range(2):
        for token in spelled(tokenizer, *OPENS[family]):
            constraint.advance(token)
        assert walked(tokenizer, constraint, np.random.default_rng(0))
        if family == "gemma":
            for token in spelled(tokenizer, "}", "<tool_call|>"):
                constraint.advance(token)
        for token in tokenizer.encode("\n"):
            assert constraint.mask() is None
            constraint.advance(token)


@pytest.mark.parametrize("family", ["hermes", "llama"])
def test_blanks_have_an_end(models: Mapping[str, Model], family: str) -> None:
    tokenizer, grammars = models[family]
    make = call_constraint(tokenizer, grammars, TOOLS, must=family == "llama")
    assert make
    constraint = make()
    for token in spelled(tokenizer, *OPENS.get(family, ()), *(["\n"] if family == "hermes" else []), "{"):
        constraint.advance(token)
    few, many = (tokenizer.encode(f'{blanks}"') for blanks in ("\n  ", "\n" * 40))
    assert constraint.count_allowed(few) == len(few)
    assert constraint.count_allowed(many) < len(many)


def test_messages_to_nobody_are_free(models: Mapping[str, Model]) -> None:
    tokenizer, grammars = models["harmony"]
    make = call_constraint(tokenizer, grammars, TOOLS, must=False)
    assert make
    constraint = make()
    parts = ("<|channel|>", "analysis", "<|message|>", "to=functions.now", "<|end|>", "<|start|>", "assistant")
    for token in spelled(tokenizer, *parts, "<|channel|>", "commentary to=functions.other", "<|message|>", "x"):
        assert constraint.mask() is None
        constraint.advance(token)


@pytest.mark.parametrize(("rest", "held"), [("", True), ("\n", True), ("\n{", True), ("nothing", False)])
def test_an_opening_that_ends_inside_of_a_token(make_vocabulary: MakeVocabulary, rest: str, held: bool) -> None:
    """What such a token has behind it belongs to the call."""
    token = f"call>{rest}"
    template = {"tokenizer.chat_template": "{{ messages }}"}
    tokenizer = Tokenizer.load(make_vocabulary({"<|endoftext|>": 3, token.replace("\n", "Ċ"): 1}, template))
    make = call_constraint(tokenizer, Grammars(tokenizer), TOOLS, must=False)
    assert make
    constraint = make()
    last = tokenizer.vocab_size - 1
    assert tokenizer.piece(last).decode() == token
    for one in tokenizer.encode("<tool_"):
        constraint.advance(one)
    assert constraint.count_allowed([last, last]) == 1
    constraint.advance(last)
    assert (constraint.mask() is not None) == held
    if held:
        check(
            *call_of(
                tokenizer, [*tokenizer.encode("<tool_"), last, *walked(tokenizer, constraint, np.random.default_rng(0))]
            )
        )


@pytest.mark.parametrize("family", ["hermes", "llama"])
def test_references_stay_inside_of_their_tool(models: Mapping[str, Model], family: str) -> None:
    """Definitions of two tools have one name, and one refers to another part of its own schema."""
    kinds: dict[str, dict[str, Any]] = {
        "few": {"type": "integer", "minimum": 1, "maximum": 3},
        "yes": {"type": "boolean"},
    }
    tools = {
        name: {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/Kind", "type": kind["type"]},
                "b": {"type": "array", "items": {"$ref": "#/properties/a"}, "minItems": 1, "maxItems": 2},
            },
            "required": ["a", "b"],
            "$defs": {"Kind": kind},
        }
        for name, kind in kinds.items()
    }
    tokenizer, grammars = models[family]
    make = call_constraint(tokenizer, grammars, tools, must=True)
    assert make
    named = set[str]()
    for seed in range(12):
        name, given = call_of(tokenizer, walked(tokenizer, make(), np.random.default_rng(seed)), tools)
        named.add(name)
        for value in (given["a"], *given["b"]):
            assert value in ((1, 2, 3) if name == "few" else (True, False))
            assert isinstance(value, bool) == (name == "yes")
    assert named == set(tools)


@pytest.mark.parametrize("family", ["hermes", "llama"])
def test_a_form_that_nobody_knows(models: Mapping[str, Model], family: str) -> None:
    tokenizer, grammars = models[family]
    tools = {"f": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}}
    assert call_constraint(tokenizer, grammars, tools, must=False) is None
    with pytest.raises(UsageError):
        call_constraint(tokenizer, grammars, tools, must=True)
