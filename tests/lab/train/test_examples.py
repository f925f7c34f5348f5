import ast
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lab.train.examples import (
    END,
    IM_END,
    IM_START,
    KINDS,
    MIDDLE,
    PREFIX,
    SUFFIX,
    Example,
    ExamplePiece,
    Special,
    add_line,
    change_number,
    examples,
    remove_line,
    rename,
)

FIM = ("fim_line", "fim_block")
LINES = st.lists(
    st.from_regex(r" {0,8}[a-z#=(\"é\x0c\u2028<|_0-9]{0,30}", fullmatch=True) | st.just("def f(x):"), max_size=60
)


def of(source: str, seed: int = 0) -> list[Example]:
    return list(examples(source, random.Random(f"{seed} {source}")))


def text(pieces: tuple[ExamplePiece, ...]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


def specials(pieces: tuple[ExamplePiece, ...]) -> list[Special]:
    return [piece for piece in pieces if isinstance(piece, Special)]


def put_together(example: Example) -> tuple[str, str, str]:
    """Prefix, middle and suffix of a FIM example."""
    first, one, second, two, last = example.prompt
    assert last == MIDDLE
    assert isinstance(one, str)
    assert isinstance(two, str)
    middle, end = example.answer
    assert isinstance(middle, str)
    assert end == END
    assert {first, second} == {PREFIX, SUFFIX}
    prefix, suffix = (one, two) if first == PREFIX else (two, one)
    return prefix, middle, suffix


def answer(example: Example) -> str:
    assert isinstance(example.answer[0], str)
    return example.answer[0]


@settings(max_examples=40)
@given(lines=LINES, seed=st.integers(0, 99))
def test_any_text_gives_sound_examples(lines: list[str], seed: int) -> None:
    source = "\n".join(lines * 5)
    for example in of(source, seed):
        assert example.kind in KINDS
        if example.kind in FIM:
            assert "".join(put_together(example)) in source
        if example.kind == "code":
            assert example.prompt == ()
            assert text(example.answer) in source


def test_the_spelling_of_a_special_token_stays_text() -> None:
    line = '    stop = "<|endoftext|><|im_end|><|fim_middle|><|mask|>"\n'
    source = 'def end(text, stops):\n    """Return where text ends."""\n' + line * 20 + "    return text\n"
    kinds = set()
    for example in (example for seed in range(20) for example in of(source, seed)):
        kinds.add(example.kind)
        expected = {
            "code": [END],
            "fim_line": [PREFIX, SUFFIX, MIDDLE, END],
            "fim_block": [PREFIX, SUFFIX, MIDDLE, END],
        }.get(example.kind, [IM_START, IM_END, IM_START, IM_END, END])
        assert sorted(specials(example.prompt) + specials(example.answer)) == sorted(expected)
        assert "<|" in text(example.prompt) + text(example.answer)
    assert kinds == set(KINDS)


def documented(source: str) -> dict[str, tuple[str, str]]:
    """Of each documented function, by what it does: its name and its docstring."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return {
        ast.dump(node.args) + "".join(map(ast.dump, node.body[1:])): (node.name, ast.get_docstring(node) or "")
        for node in nodes
        if ast.get_docstring(node)
    }


# Edits: what the instruction says, done again here by other means.

WORD = re.compile(r"(\w+)")


def replace_word(code: str, old: str, new: str) -> str:
    return "".join(new if part == old else part for part in WORD.split(code))


def follow(instruction: str, before: str) -> list[str]:
    """All ways to do as the instruction says."""
    if found := re.fullmatch(r"(?:Rename|Change) `(.*)` to `(.*)`\.", instruction):
        return [replace_word(before, found[1], found[2])]
    lines = before.split("\n")
    if found := re.fullmatch(r"Remove the line `(.*)`\.", instruction):
        return ["\n".join(lines[:i] + lines[i + 1 :]) for i, line in enumerate(lines) if line.strip() == found[1]]
    found = re.fullmatch(r"Add the line `(.*)` after `(.*)`\.", instruction)
    assert found, instruction
    places = [i + 1 for i, line in enumerate(lines) if line.strip() == found[2]]
    indents = range(0, 60)
    return ["\n".join([*lines[:i], " " * n + found[1], *lines[i:]]) for i in places for n in indents]


CODE_LINES = st.lists(st.sampled_from(["a = 1", "    b = 20", "b_2 = b", "", "  for i in b:", "x", "1"]), min_size=1)


@given(
    lines=CODE_LINES, seed=st.integers(0, 1000), make=st.sampled_from([rename, change_number, remove_line, add_line])
)
def test_edits_of_any_lines(lines: list[str], seed: int, make: object) -> None:
    assert callable(make)
    change = make("\n".join(lines), random.Random(seed))
    if change:
        assert change.after in follow(change.instruction, change.before)
        assert change.after != change.before
