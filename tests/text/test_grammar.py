"""Constraints over the embedded vocabulary: random text that the masks admit satisfies the grammar.

Each schema comes with a check that uses no grammar.
"""

import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import llguidance
import numpy as np
import pytest

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text import grammar_trial
from localdflash.text.grammar import GrammarConstraint, Grammars
from localdflash.text.tokenizer import Tokenizer
from tests.support.costs import drafting_pays

Make = Callable[[Grammars], GrammarConstraint]
Check = Callable[[Any], bool]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(local_files(load_registry().resolve("embedded")).target)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def write(constraint: GrammarConstraint, tokenizer: Tokenizer, seed: int, hurry: int = 30) -> bytes:
    """Return text sampled from the masks; after `hurry` tokens, closing tokens are preferred."""
    dice, text = random.Random(seed), b""
    closing = [token for end in ('"', "}", "]", "0", ":", ",", "\n") for token in tokenizer.encode(end)]
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


def regex(grammars: Grammars, pattern: str) -> GrammarConstraint:
    return grammars.lark(f"start: /{pattern}/")


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


ADDRESS = closed(
    {"street": {"type": "string", "maxLength": 8}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "zip"
)
RECORD = closed(
    {"to": ADDRESS, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}, "count": {"type": "integer"}},
    *("to", "tags"),
)


def is_record(value: Any) -> bool:
    address, fields = value["to"], set(value)
    return (
        {"to", "tags"} <= fields <= {"to", "tags", "count"}
        and {"zip"} <= set(address) <= {"zip", "street"}
        and bool(re.fullmatch("[0-9]{5}", address["zip"]))
        and len(address.get("street", "")) <= 8
        and set(value["tags"]) <= {"a", "b"}
        and type(value.get("count", 0)) is int
    )


SCHEMAS: dict[str, tuple[dict[str, Any], Check]] = {
    "record": (RECORD, is_record),
    "enum": ({"enum": ["red", 7, None, {"x": [1, "é"]}]}, lambda v: v in ["red", 7, None, {"x": [1, "é"]}]),
    "const": ({"const": 'say "hi"\n\\ 漢😋'}, lambda v: v == 'say "hi"\n\\ 漢😋'),
    "number": ({"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, lambda v: 0 < v <= 2.5),
    "string": ({"type": "string"}, lambda v: isinstance(v, str)),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_masks_admit_only_json_of_the_schema(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    schema, check = SCHEMAS[name]
    for seed in range(3):
        text = write(grammars.json_schema(schema), tokenizer, seed)
        assert check(json.loads(text)), text


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda g: g.lark('start: WORD ("," WORD)*\nWORD: /[a-z]+/'), "[a-z]+(,[a-z]+)*"),
        (lambda g: g.gbnf('root ::= name "=" ("yes" | "no")\nname ::= [é-ü]+'), "[é-ü]+=(yes|no)"),
    ],
)
def test_lark_and_gbnf_grammars(make: Make, pattern: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    for seed in range(5):
        text = write(make(grammars), tokenizer, seed)
        assert re.fullmatch(pattern, text.decode()), text


MAKERS: dict[str, Make] = {
    "record": lambda g: g.json_schema(RECORD),
    "const": lambda g: g.json_schema(SCHEMAS["const"][0]),
    "regex": lambda g: regex(g, "(ab|abc)*é"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_allowed_and_forced_agree_with_mask_and_advance(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
    dice = random.Random(name)
    constraint, replayed = MAKERS[name](grammars), list[int]()

    def naive(tokens: list[int]) -> int:
        walk = MAKERS[name](grammars)
        for token in replayed:
            walk.advance(token)
        for count, token in enumerate(tokens):
            if not walk.mask()[token]:
                return count
            if token in tokenizer.ends:
                return count + 1
            walk.advance(token)
        return len(tokens)

    for _ in range(25):
        allowed = np.flatnonzero(constraint.mask())
        forced, end = list(constraint.forced_tokens()), min(tokenizer.ends)
        assert naive(forced) == len(forced)
        drafts = [
            [int(dice.choice(allowed)), *(dice.randrange(tokenizer.vocab_size) for _ in range(2))] for _ in range(3)
        ]
        for draft in (*drafts, [*forced, end], [*forced, end, end]):
            assert constraint.count_allowed(draft) == naive(draft), draft
        text = tokenizer.spell(forced)
        for token in allowed:  # any other continuation spells the forced text too
            piece = tokenizer.piece(int(token))
            assert piece.startswith(text) or text.startswith(piece), (text, piece)
        assert np.array_equal(np.flatnonzero(constraint.mask()), allowed)  # neither changed anything
        chosen = int(dice.choice(allowed))
        if chosen in tokenizer.ends:
            break
        constraint.advance(chosen)
        replayed.append(chosen)


def test_forced_tokens_cover_most_of_a_constant(grammars: Grammars, tokenizer: Tokenizer) -> None:
    for text in ('{"name": "a"}', "é" * 3000):  # short, and too long to be tokenised whole
        constraint = regex(grammars, re.escape(text))
        forced = constraint.forced_tokens()
        assert text.encode().startswith(tokenizer.spell(forced))
        assert len(tokenizer.spell(forced)) >= min(len(text.encode()) - 8, 900)
        assert constraint.count_allowed(forced) == len(forced)


def test_markers_are_never_admitted_as_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = regex(grammars, r"(.|\n)*")
    assert set(np.flatnonzero(constraint.mask())) & tokenizer.markers == tokenizer.ends
    spelled = tokenizer.encode("<|im_start|>")  # as ordinary characters
    assert constraint.count_allowed(spelled) == len(spelled)


DOUBLING = "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1} a{i + 1}\n" for i in range(60)) + 'a60 ::= "x"'
PATTERNS = [{"pattern": f".*{chr(97 + i)}.{{{i}}}"} for i in range(20)]
BAD: dict[str, tuple[Callable[[Grammars], Any], str]] = {
    "type": (lambda g: g.json_schema({"type": "strin"}), "JSON schema: Invalid type: strin"),
    "loop": (lambda g: g.json_schema({"$ref": "#"}), "no text can satisfy it"),
    "remote ref": (lambda g: g.json_schema({"$ref": "http://127.0.0.1:1/x"}), "does not fetch"),
    "deep": (lambda g: g.json_schema(reduce(lambda s, _: {"items": s}, range(300), {})), "recursion limit"),
    "large text": (lambda g: g.lark("é" * 40_000), "got 80000"),
    "surrogate": (lambda g: g.lark("start: \ud800"), "surrogate pair at character 7"),
    "lark": (lambda g: g.lark("start: foo"), 'Lark grammar: at 1(8): unknown name: "foo"'),
    "gbnf": (lambda g: g.gbnf("root ::= foo"), "GBNF grammar: rule 'root' uses 'foo', which is not defined"),
    "gbnf depth": (lambda g: g.gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000), "deeply nested"),
    "doubling": (lambda g: g.gbnf(DOUBLING), "too big"),
    "patterns": (lambda g: g.json_schema({"type": "string", "allOf": PATTERNS}), "too much work"),
}


@pytest.mark.parametrize(("make", "reason"), BAD.values(), ids=BAD)
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
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - children < 2 * grammar_trial.CPU_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_packages_outside_of_the_interpreter_s_own_folder(monkeypatch: pytest.MonkeyPatch, grammars: Grammars) -> None:
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    monkeypatch.setenv("PYTHONPATH", str(Path(llguidance.__file__).parents[1]))
    assert grammars.lark('start: "found through PYTHONPATH"')


def test_a_process_that_cannot_start_is_no_large_grammar(
    monkeypatch: pytest.MonkeyPatch, grammars: Grammars, tmp_path: Path
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('no such library')")
    with monkeypatch.context() as change:
        change.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(LocaldflashError, match=r"failed \(ImportError: no such library\)") as raised:
            grammars.lark('start: "not compiled"')
        assert raised.value.exit_code == LocaldflashError.exit_code
        change.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(LocaldflashError, match="No such file or directory"):
            grammars.lark('start: "not compiled"')
    assert grammars.lark('start: "not compiled"')


HOSTILE: dict[str, Make] = {
    "properties": lambda g: g.json_schema(closed({f"p{i}": {"type": "string"} for i in range(2000)})),
    "automaton": lambda g: regex(g, "(a|b)*a(a|b){200}"),
    "repeat": lambda g: g.lark('start: ("a" "b"){1000000}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_do_not_hang(name: str, grammars: Grammars, tokenizer: Tokenizer) -> None:
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


def test_a_step_with_too_much_work_ends_the_request(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = HOSTILE["properties"](grammars)
    tried = grammar_trial.compile_error.cache_info()
    HOSTILE["properties"](grammars)
    assert grammar_trial.compile_error.cache_info() == tried._replace(hits=tried.hits + 1)  # a grammar is tried once
    with pytest.raises(UsageError, match="grammar: Parser Error"):
        any(map(constraint.advance, tokenizer.encode('{"p1": "a", ')))


def test_drafting_with_a_grammar_does_not_change_the_text() -> None:
    schema = closed({"to": ADDRESS, "name": {"type": "string", "maxLength": 12}}, "to", "name")
    texts = set()
    for draft in (True, False):
        with LoadedPair(Options(threads=1, draft=draft, backend="llama.cpp", costs=drafting_pays)) as loaded:
            constraint = Grammars(loaded.tokenizer).json_schema(schema)
            ids = loaded.tokenizer.encode("# An address as JSON:\n")
            request = Request(ids, 200, ends=loaded.tokenizer.ends, constraint=constraint)
            tokens = [token for step in generate(loaded.pair, request) for token in step.tokens]
            texts.add(loaded.tokenizer.spell(tokens))
            assert request.finish_reason == "stop"
            assert (request.stats.steps < request.stats.tokens) == draft
    assert len(texts) == 1
    written = json.loads(texts.pop())
    assert (set(written), len(written["name"]) <= 12) == ({"to", "name"}, True)
    assert re.fullmatch("[0-9]{5}", written["to"]["zip"])
