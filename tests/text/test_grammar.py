"""Constraints on the shipped vocabulary: whatever their masks let through is what was asked for.

Answers are drawn at random from the masks. Each schema has a check of its own that knows no grammar.
"""

import json
import random
import re
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import UsageError
from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text import grammar_trial
from localdflash.text.grammar import GrammarConstraint, Grammars
from localdflash.text.tokenizer import Tokenizer
from tests.support.costs import drafting_pays

Make = Callable[[], GrammarConstraint]
Check = Callable[[Any], bool]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(local_files(load_registry().resolve("embedded")).target)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def write(constraint: GrammarConstraint, tokenizer: Tokenizer, seed: int, hurry: int = 30) -> bytes:
    """A text that the masks let through, token by token; after `hurry` tokens what closes something comes first."""
    dice, text = random.Random(seed), b""
    closing = [token for end in (b'"', b"}", b"]", b"0", b":", b",", b"\n") for token in tokenizer.encode(end.decode())]
    for count in range(1000):
        allowed = constraint.mask()
        assert allowed.any()
        if ends := [token for token in tokenizer.ends if allowed[token]]:
            assert len(ends) == len(tokenizer.ends)
            if count > hurry or dice.random() < 0.5 or allowed.sum() == len(ends):
                constraint.advance(dice.choice(ends))
                return text
        likely = [token for token in closing if allowed[token]] if count > hurry else []
        token = likely[0] if likely else int(dice.choice(np.flatnonzero(allowed)))
        if token in tokenizer.ends:
            continue
        assert token not in tokenizer.markers
        constraint.advance(token)
        text += tokenizer.piece(token)
    raise AssertionError(f"no end: {text!r}")


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def keys(value: Any, required: set[str], optional: set[str] = frozenset()) -> bool:  # type: ignore[assignment]
    return isinstance(value, dict) and required <= set(value) <= required | optional


def is_tree(value: Any) -> bool:
    return keys(value, {"name"}, {"children"}) and all(map(is_tree, value.get("children", [])))


def is_address(value: Any) -> bool:
    fits = keys(value, {"zip"}, {"street"}) and len(value.get("street", "")) <= 8
    return fits and bool(re.fullmatch("[0-9]{5}", value["zip"]))


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


TREE = closed({"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}}, "name")
ADDRESS = closed(
    {"street": {"type": "string", "maxLength": 8}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "zip"
)
SCHEMAS: dict[str, tuple[dict[str, Any], Check]] = {
    "object": ({"type": "object"}, lambda v: isinstance(v, dict)),
    "required": (
        closed({"a": {"type": "integer"}, "b": {"type": "boolean"}}, "a"),
        lambda v: keys(v, {"a"}, {"b"}) and is_int(v["a"]),
    ),
    "array": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        lambda v: 2 <= len(v) <= 4 and set(v) <= {True, False},
    ),
    "enum": ({"enum": ["red", 7, None, {"x": [1, "é"]}]}, lambda v: v in ["red", 7, None, {"x": [1, "é"]}]),
    "const": ({"const": 'say "hi"\n\\ 漢😋'}, lambda v: v == 'say "hi"\n\\ 漢😋'),
    "integer": ({"type": "integer", "minimum": -3, "maximum": 1200}, lambda v: is_int(v) and -3 <= v <= 1200),
    "number": ({"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, lambda v: 0 < v <= 2.5),
    "string": ({"type": "string"}, lambda v: isinstance(v, str)),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"}, lambda v: bool(re.fullmatch("[A-Z]{2}-[0-9]+", v))),
    "nested": (
        closed({"to": ADDRESS, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}}, "to", "tags"),
        lambda v: keys(v, {"to", "tags"}) and is_address(v["to"]) and set(v["tags"]) <= {"a", "b"},
    ),
    "record": (
        closed(
            {"to": ADDRESS, "name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["a", "b"]}}, "to", "name"
        ),
        lambda v: keys(v, {"to", "name"}, {"kind"}) and is_address(v["to"]) and len(v["name"]) <= 12,
    ),
    "map": ({"type": "object", "additionalProperties": {"type": "integer"}}, lambda v: all(map(is_int, v.values()))),
    "tree": (TREE, is_tree),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_the_masks_let_through_is_json_of_the_schema(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    schema, check = SCHEMAS[name]
    for seed in range(3):
        text = write(grammars.json_schema(schema), tokenizer, seed)
        assert check(json.loads(text)), text


def test_any_json_object(grammars: Grammars, tokenizer: Tokenizer) -> None:
    for seed in range(5):
        assert isinstance(json.loads(write(grammars.json_object(), tokenizer, seed)), dict)


def test_other_languages(grammars: Grammars, tokenizer: Tokenizer) -> None:
    cases: list[tuple[Make, str]] = [
        (lambda: grammars.regex(r"[a-z]{2,5}(-[0-9]+)?"), r"[a-z]{2,5}(-[0-9]+)?"),
        (lambda: grammars.lark('start: WORD ("," WORD)*\nWORD: /[a-z]+/'), "[a-z]+(,[a-z]+)*"),
        (lambda: grammars.gbnf('root ::= name "=" ("yes" | "no")\nname ::= [é-ü]+'), "[é-ü]+=(yes|no)"),
    ]
    for make, pattern in cases:
        for seed in range(5):
            text = write(make(), tokenizer, seed)
            assert re.fullmatch(pattern, text.decode()), text


MAKERS: dict[str, Callable[[Grammars], GrammarConstraint]] = {
    "nested": lambda g: g.json_schema(SCHEMAS["nested"][0]),
    "const": lambda g: g.json_schema(SCHEMAS["const"][0]),
    "regex": lambda g: g.regex("(ab|abc)*é"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_allowed_and_forced_say_what_mask_and_advance_say(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    dice = random.Random(name)
    constraint, replayed = MAKERS[name](grammars), list[int]()

    def again(tokens: list[int]) -> GrammarConstraint:
        fresh = MAKERS[name](grammars)
        for token in tokens:
            fresh.advance(token)
        return fresh

    def naive(tokens: list[int]) -> int:
        walk = again(replayed)
        for count, token in enumerate(tokens):
            if not walk.mask()[token]:
                return count
            if token in tokenizer.ends:
                return count + 1
            walk.advance(token)
        return len(tokens)

    for _ in range(25):
        allowed = np.flatnonzero(constraint.mask())
        for _ in range(3):
            guess = [int(dice.choice(allowed)), *(dice.randrange(tokenizer.vocab_size) for _ in range(2))]
            assert constraint.count_allowed(guess) == naive(guess), guess
        forced = list(constraint.forced_tokens())
        assert naive(forced) == len(forced)
        for more in ([min(tokenizer.ends)], [min(tokenizer.ends)] * 2):
            assert constraint.count_allowed(forced + more) == naive(forced + more)
        text = tokenizer.spell(forced)
        for token in allowed:  # every other way to go on spells the same text
            piece = tokenizer.piece(int(token))
            assert piece.startswith(text) or text.startswith(piece), (text, piece)
        assert np.array_equal(np.flatnonzero(constraint.mask()), allowed)  # neither changed anything
        chosen = int(dice.choice(allowed))
        if chosen in tokenizer.ends:
            break
        constraint.advance(chosen)
        replayed.append(chosen)


def test_forced_text_of_a_constant_is_nearly_all_of_it(grammars: Grammars, tokenizer: Tokenizer) -> None:
    for text in ('{"name": "a"}', "é" * 3000):  # short, and too long to be tokenised whole
        constraint = grammars.regex(re.escape(text))
        forced = constraint.forced_tokens()
        assert text.encode().startswith(tokenizer.spell(forced))
        assert len(tokenizer.spell(forced)) >= min(len(text.encode()) - 8, 900)
        assert constraint.count_allowed(forced) == len(forced)


def test_only_ends_may_follow_a_complete_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.regex("ab")
    for token in tokenizer.encode("ab"):
        constraint.advance(token)
    for _ in range(2):  # after an end there is nothing but ends either
        assert set(np.flatnonzero(constraint.mask())) == tokenizer.ends
        assert constraint.count_allowed([min(tokenizer.ends), min(tokenizer.ends)]) == 1
        constraint.advance(min(tokenizer.ends))


def test_characters_may_be_cut_anywhere(grammars: Grammars, tokenizer: Tokenizer) -> None:
    singles = {tokenizer.piece(token): token for token in reversed(range(tokenizer.vocab_size))}
    constraint = grammars.json_schema({"type": "string"})
    for byte in '"é漢😋"'.encode():
        token = singles[bytes([byte])]
        assert constraint.mask()[token]
        assert constraint.count_allowed([token]) == 1
        constraint.advance(token)
    assert constraint.mask()[min(tokenizer.ends)]


def test_half_a_character_is_not_the_end(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.regex("(.|\n)*")
    first = next(t for t in range(tokenizer.vocab_size) if tokenizer.piece(t) == "é".encode()[:1])
    constraint.advance(first)
    assert not constraint.mask()[list(tokenizer.ends)].any()


def test_markers_never_come_as_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.regex(r"(.|\n)*")
    assert set(np.flatnonzero(constraint.mask())) & tokenizer.markers == tokenizer.ends
    spelled = tokenizer.encode("<|im_start|>")  # as ordinary characters it is a text like any other
    assert constraint.count_allowed(spelled) == len(spelled)


def test_the_mask_is_as_long_as_the_logits(tokenizer: Tokenizer) -> None:
    for extra in (0, 1, 31, 100):
        constraint = Grammars(tokenizer, tokenizer.vocab_size + extra).regex("(.|\n)*")
        mask = constraint.mask()
        assert mask.dtype == np.bool_
        assert len(mask) == tokenizer.vocab_size + extra
        assert mask[: tokenizer.vocab_size].any()
        assert not mask[tokenizer.vocab_size :].any()


@pytest.mark.parametrize("fixture", ["tokenizer_of_markers", "sentencepiece"])
def test_other_kinds_of_vocabulary(fixture: str, request: pytest.FixtureRequest) -> None:
    other: Tokenizer = request.getfixturevalue(fixture)
    for seed in range(5):
        text = write(Grammars(other).json_schema(SCHEMAS["nested"][0]), other, seed)
        assert SCHEMAS["nested"][1](json.loads(text)), text


@pytest.fixture
def tokenizer_of_markers(vocabulary_file: Any) -> Tokenizer:
    return Tokenizer.load(vocabulary_file)


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


DOUBLING = "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60 ::= "x"'
PATTERNS = [{"pattern": f".*{chr(97 + i)}.{{{i}}}"} for i in range(20)]
BAD: list[tuple[str, Callable[[Grammars], Any], str]] = [
    ("type", lambda g: g.json_schema({"type": "strin"}), "JSON schema: Invalid type: strin"),
    (
        "not an object",
        lambda g: g.json_schema([]),  # type: ignore[arg-type]
        "JSON schema: expected an object, found list",
    ),
    ("nan", lambda g: g.json_schema({"const": float("nan")}), "JSON schema: Out of range float values"),
    ("impossible", lambda g: g.json_schema({"type": "integer", "minimum": 2, "maximum": 1}), "JSON schema: "),
    ("loop", lambda g: g.json_schema({"$ref": "#"}), "no text can satisfy it"),
    ("remote ref", lambda g: g.json_schema({"$ref": "http://127.0.0.1:1/x"}), "does not fetch"),
    ("deep", lambda g: g.json_schema(deep(300)), "recursion limit"),
    ("large text", lambda g: g.regex("é" * 40_000), "regular expression: 80000 bytes; at most 65536 are read"),
    ("surrogate", lambda g: g.lark("start: \ud800"), "half of a surrogate pair at character 7"),
    ("regex", lambda g: g.regex("("), "regular expression: unclosed group"),
    ("lark", lambda g: g.lark("start: foo"), 'Lark grammar: at 1(8): unknown name: "foo"'),
    ("gbnf", lambda g: g.gbnf("root ::= foo"), "GBNF grammar: rule 'root' uses 'foo', which is not defined"),
    ("gbnf depth", lambda g: g.gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "deeply nested"),
    ("doubling", lambda g: g.gbnf(DOUBLING), "too big"),
    ("patterns", lambda g: g.json_schema({"type": "string", "allOf": PATTERNS}), "too much work"),
]


@pytest.mark.parametrize(("make", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_grammars_are_refused_in_one_short_line(
    make: Callable[[Grammars], Any], reason: str, grammars: Grammars
) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(UsageError) as raised:
        make(grammars)
    message = str(raised.value)
    assert reason in message
    assert message.isprintable()
    assert len(message) < 260
    assert time.process_time() - began < 3
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children < 2 * grammar_trial.SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


HOSTILE: dict[str, Callable[[Grammars], GrammarConstraint]] = {
    "enum": lambda g: g.json_schema({"enum": [f"x{i}" for i in range(6000)]}),
    "properties": lambda g: g.json_schema(closed({f"p{i}": {"type": "string"} for i in range(2000)})),
    "stars": lambda g: g.regex("(.*a){30}"),
    "automaton": lambda g: g.regex("(a|b)*a(a|b){200}"),
    "ambiguous": lambda g: g.gbnf('root ::= s\ns ::= s s s | s s | "a" | s "a" s | ""'),
    "repeat": lambda g: g.lark('start: ("a" "b"){1000000}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_neither_hang_nor_break_a_step(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    dice, began = random.Random(0), time.process_time()
    with suppress(UsageError):
        constraint = HOSTILE[name](grammars)
        for _ in range(20):
            token = int(dice.choice(np.flatnonzero(constraint.mask())))
            constraint.advance(token)
            constraint.forced_tokens()
            if token in tokenizer.ends:
                break
    assert time.process_time() - began < 4


def test_too_much_work_in_a_step_is_said(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = HOSTILE["properties"](grammars)
    with pytest.raises(UsageError, match="grammar: Parser Error"):
        _advance(constraint, tokenizer.encode('{"p1": "a", '))


def _advance(constraint: GrammarConstraint, tokens: list[int]) -> None:
    for token in tokens:
        constraint.advance(token)


def test_a_grammar_is_tried_once(grammars: Grammars) -> None:
    schema = {"const": "tried once"}
    grammars.json_schema(schema)
    tried = grammar_trial.problem.cache_info()
    grammars.json_schema(schema)
    assert grammar_trial.problem.cache_info().misses == tried.misses
    assert grammar_trial.problem.cache_info().hits == tried.hits + 1


@pytest.mark.parametrize(
    "name",
    [
        "record",
    ],
)
def test_drafted_text_is_plain_text_and_json(name: str, tokenizer: Tokenizer) -> None:
    schema, check = SCHEMAS[name]
    texts = set()
    for draft in (True, False):
        with LoadedPair(Options(threads=1, draft=draft, backend="llama.cpp", costs=drafting_pays)) as loaded:
            constraint = Grammars(loaded.tokenizer).json_schema(schema)
            ids = loaded.tokenizer.encode("# An address as JSON:\n")
            ends = loaded.tokenizer.ends
            request = Request(ids, 200, ends=ends, constraint=constraint)
            tokens = [token for step in generate(loaded.pair, request) for token in step.tokens]
            texts.add(loaded.tokenizer.spell(tokens))
            assert request.finish_reason == "stop"
            assert (request.stats.steps < request.stats.tokens) == draft
    assert len(texts) == 1
    assert check(json.loads(texts.pop()))
