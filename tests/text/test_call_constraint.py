"""Constrained tool calls: whatever the model samples, a call fits its family's syntax and its tool's schema."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import UsageError
from localdflash.engine.sampling import Constraint
from localdflash.text.answer_format import start_answer
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


def constrained(
    model: Model, tools: Schemas = TOOLS, *, required: bool = False, after: Sequence[int] = ()
) -> Constraint:
    """Return the constraint after some ids that it leaves free."""
    make = call_constraint(*model, tools, required=required)
    assert make
    constraint = make()
    for token in after:
        assert constraint.mask() is None
        constraint.advance(token)
    return constraint


def sample_ids(tokenizer: Tokenizer, constraint: Constraint, seed: int = 0, max_tokens: int = 300) -> list[int]:
    """Return ids sampled at random from the masks, until the constraint or the answer ends."""
    ids, random = list[int](), np.random.default_rng(seed)
    while len(ids) < max_tokens and (mask := constraint.mask()) is not None:
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
    """Return the only call of an answer."""
    decoder = start_answer(tokenizer, [], "", first_part="call").make_decoder(tokenizer)
    text = decoder.push(token for token in ids if token not in tokenizer.ends) + decoder.finish()
    text_before, [(name, arguments)] = read(call_reader(tokenizer, tools), [text])
    assert text_before == ""
    return name, json.loads(arguments)


def assert_fits_schema(name: str, arguments: Any) -> None:
    assert name in TOOLS
    assert set(TOOLS[name].get("required", ())) <= set(arguments) <= set(TOOLS[name].get("properties", {}))
    assert arguments.get("days", 1) in range(10)
    assert arguments.get("unit", "C") in ("C", "F")
    assert isinstance(arguments.get("exact", True), bool)


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "llama", "words"])
def test_a_required_call_fits_its_schema(models: Mapping[str, Model], family: str) -> None:
    tokenizer, _ = models[family]
    assert_fits_schema(*call_of(tokenizer, sample_ids(tokenizer, constrained(models[family], required=True))))


@pytest.mark.parametrize("family", sorted(OPENS))
def test_an_optional_call_fits_its_schema_after_the_opening(models: Mapping[str, Model], family: str) -> None:
    tokenizer, _ = models[family]
    opening = spelled(tokenizer, *OPENS[family])
    free = [*tokenizer.encode("I look. {"), *opening]
    assert constrained(models[family]).count_allowed([*free, 0, 0]) == len(free)
    assert constrained(models[family], after=free[:-1]).forced_tokens() == []
    constraint = constrained(models[family], after=free)
    ids = sample_ids(tokenizer, constraint)
    if family == "gemma":  # its arguments are not constrained
        name = tokenizer.spell(ids).decode().removeprefix("call:").removesuffix("{")
        assert name in TOOLS
        rest = spelled(tokenizer, "exact:true}", "<tool_call|>")
        assert constraint.count_allowed([*rest, 0]) == len(rest)
        for token in rest:
            assert constraint.mask() is None
            constraint.advance(token)
        assert call_of(tokenizer, [*opening, *ids, *rest]) == (name, {"exact": True})
    else:
        assert_fits_schema(*call_of(tokenizer, [*opening, *ids]))


@pytest.mark.parametrize(("rest", "is_held"), [("", True), ("\n", True), ("\n{", True), ("nothing", False)])
def test_text_after_the_opening_in_the_same_token_belongs_to_the_call(
    make_vocabulary: MakeVocabulary, rest: str, is_held: bool
) -> None:
    token = f"call>{rest}".replace("\n", "Ċ")
    template = {"tokenizer.chat_template": "{{ messages }}"}
    tokenizer = Tokenizer.load(make_vocabulary({"<|endoftext|>": 3, token: 1}, template))
    opening, last = tokenizer.encode("<tool_"), tokenizer.vocab_size - 1
    assert tokenizer.piece(last).decode() == f"call>{rest}"
    constraint = constrained((tokenizer, Grammars(tokenizer)), after=opening)
    assert constraint.count_allowed([last, last]) == 1
    constraint.advance(last)
    assert (constraint.mask() is not None) == is_held
    if is_held:
        assert_fits_schema(*call_of(tokenizer, [*opening, last, *sample_ids(tokenizer, constraint)]))


def test_references_resolve_inside_their_own_tool_s_schema(models: Mapping[str, Model]) -> None:
    kinds: Schemas = {"few": {"type": "integer", "minimum": 1, "maximum": 3}, "yes": {"type": "boolean"}}
    items = {"type": "array", "items": {"$ref": "#/properties/a"}, "minItems": 1, "maxItems": 2}
    tools: dict[str, dict[str, Any]] = {
        name: {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/Kind", "type": kind["type"]}, "b": items},
            "required": ["a", "b"],
            "$defs": {"Kind": kind},
        }
        for name, kind in kinds.items()
    }
    named, (tokenizer, _) = set[str](), models["hermes"]
    for seed in range(8):
        constraint = constrained(models["hermes"], tools, required=True)
        name, given = call_of(tokenizer, sample_ids(tokenizer, constraint, seed), tools)
        named.add(name)
        for value in (given["a"], *given["b"]):
            assert value in ((1, 2, 3) if name == "few" else (True, False))
            assert isinstance(value, bool) == (name == "yes")
    assert named == set(tools)


def test_grammar_and_parser_agree_on_parameters_without_one_type(models: Mapping[str, Model]) -> None:
    schemas: dict[str, Any] = {
        "size": {"$ref": "#/$defs/Size"},
        "count": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}, {"type": "null"}]},
        "name": {"type": ["string", "null"], "enum": ["1", None]},
        "mixed": {"enum": [1, "x"]},
    }
    size = {"type": "integer", "minimum": 1, "maximum": 3}
    tools = {"f": {"properties": schemas, "required": list(schemas), "$defs": {"Size": size}}}
    tokenizer, _ = models["tags"]
    for seed in range(8):
        constraint = constrained(models["tags"], tools, required=True)
        _, given = call_of(tokenizer, sample_ids(tokenizer, constraint, seed), tools)
        assert given["size"] in (1, 2, 3)
        assert given["count"] in (1, 2, 3, None)
        assert given["name"] in ("1", None)
        assert given["mixed"] in (1, "x")


@pytest.mark.parametrize("family", ["hermes", "llama"])
def test_a_broken_schema_is_refused_only_if_a_call_is_required(models: Mapping[str, Model], family: str) -> None:
    tools = {"f": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]}}
    assert call_constraint(*models[family], tools, required=False) is None
    with pytest.raises(UsageError):
        call_constraint(*models[family], tools, required=True)
