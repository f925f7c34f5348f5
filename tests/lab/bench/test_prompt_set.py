import ast
import hashlib
import json
import re
import textwrap
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.prompt_set import CATEGORIES, BenchPrompt, load

FILES = sorted((Path(prompt_set.__file__).parent / "prompts").glob("*.py"))
PROMPTS = load()

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"


def of(category: str) -> list[BenchPrompt]:
    return [prompt for prompt in PROMPTS if prompt.category == category]


def source_of(prompt: BenchPrompt) -> str:
    return FILES[int(prompt.id.split("/")[1])].read_text()


def fenced_code(text: str) -> str:
    match = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)
    assert match, text
    return match.group(1)


def documented_functions(source: str) -> list[ast.FunctionDef]:
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [node for node in nodes if ast.get_docstring(node)]


def without_docstring(node: ast.FunctionDef) -> str:
    return "".join(ast.dump(part) for part in (node.args, *node.body[bool(ast.get_docstring(node)) :]))


def only_function(code: str) -> ast.FunctionDef:
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.FunctionDef)
    return node


def test_every_module_gives_one_prompt_of_every_category() -> None:
    assert len(FILES) >= 44
    assert len(PROMPTS) >= 220
    assert Counter(prompt.category for prompt in PROMPTS) == dict.fromkeys(CATEGORIES, len(FILES))
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS)


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


def test_limit_takes_the_first_of_each_category() -> None:
    assert load(3) == [prompt for category in CATEGORIES for prompt in of(category)[:3]]
    assert load(10_000) == PROMPTS


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(limit: int) -> None:
    with pytest.raises(UsageError, match=str(limit)):
        load(limit)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_modules_are_small_documented_ascii_python(path: Path) -> None:
    text = path.read_text(encoding="ascii")
    assert "\t" not in text
    assert "\r" not in text
    assert text.endswith("\n")
    assert 40 <= text.count("\n") <= 75
    assert 1500 <= len(text) <= 2500
    assert len(documented_functions(text)) >= 3


@pytest.mark.parametrize("prompt", of("fim_line") + of("fim_block"), ids=lambda prompt: prompt.id)
def test_fim_pieces_are_whole_lines_of_the_file_around_the_answer(prompt: BenchPrompt) -> None:
    source, joined = source_of(prompt), prompt.prefix + prompt.reference + prompt.suffix
    start = source.find(joined)
    assert start == 0 or source[start - 1] == "\n"
    assert joined.endswith("\n")
    assert prompt.suffix.startswith("\n")
    assert prompt.reference.strip()
    assert len(prompt.prefix) <= 1500
    assert len(prompt.suffix) <= 500
    if start > 0:
        assert len(prompt.prefix) > 1500 - 120  # cut no more than needed
    if len(source) > start + len(joined):
        assert len(prompt.suffix) > 500 - 120


@pytest.mark.parametrize("prompt", of("fim_line"), ids=lambda prompt: prompt.id)
def test_fim_line_asks_for_the_rest_of_a_code_line_in_a_body(prompt: BenchPrompt) -> None:
    assert "\n" not in prompt.reference
    source = source_of(prompt)
    before = source.index(prompt.prefix + prompt.reference + prompt.suffix) + len(prompt.prefix)
    line = source[:before].count("\n") + 1
    assert not source.splitlines()[line - 1].lstrip().startswith("#")
    bodies = [node.body[1:] for node in documented_functions(source)]
    assert any(body and body[0].lineno <= line <= (body[-1].end_lineno or 0) for body in bodies)


@pytest.mark.parametrize("prompt", of("fim_block"), ids=lambda prompt: prompt.id)
def test_fim_block_asks_for_a_whole_body_after_the_docstring(prompt: BenchPrompt) -> None:
    source = source_of(prompt)
    whole = prompt.prefix + prompt.reference + prompt.suffix
    hollow = source.replace(whole, f"{prompt.prefix}...{prompt.suffix}")
    left = [without_docstring(node) for node in documented_functions(hollow)]
    kept = [without_docstring(node) for node in documented_functions(source)]
    (changed,) = (new for new, old in zip(left, kept, strict=True) if new != old)
    assert changed.endswith("Expr(value=Constant(value=Ellipsis))")
    assert prompt.prefix.splitlines()[-1].strip() == ""


@pytest.mark.parametrize("prompt", of("function") + of("prose"), ids=lambda prompt: prompt.id)
def test_function_and_prose_are_two_halves_of_a_function_of_the_file(prompt: BenchPrompt) -> None:
    code = prompt.reference if prompt.category == "function" else prompt.question
    doc = prompt.question if prompt.category == "function" else prompt.reference
    asked = only_function(fenced_code(code))
    assert ast.get_docstring(asked) is None
    (origin,) = (
        node
        for node in documented_functions(source_of(prompt))
        if ast.dump(node.args) in ast.dump(asked) and without_docstring(node) == without_docstring(asked)
    )
    assert asked.name == origin.name
    assert (ast.get_docstring(origin) or "") in doc
    if prompt.category == "function":
        assert fenced_code(prompt.reference).startswith(fenced_code(prompt.question))


@pytest.mark.parametrize("prompt", of("edit"), ids=lambda prompt: prompt.id)
def test_edits_change_one_function_of_the_file_and_leave_it_valid(prompt: BenchPrompt) -> None:
    before, after = fenced_code(prompt.question), fenced_code(prompt.reference)
    assert prompt.reference == f"```python\n{after}\n```"
    old, new = only_function(before), only_function(after)
    assert ast.dump(old) != ast.dump(new)
    original = after if prompt.question.startswith("Add") else before
    assert any(textwrap.indent(original, margin) in source_of(prompt) for margin in ("", "    "))
    assert 200 <= len(before) <= 900
    assert re.match(r"(Rename|Change|Remove|Add) .*`\.$", prompt.question.splitlines()[0])


def test_edits_are_of_every_kind() -> None:
    kinds = Counter(prompt.question.split()[0] for prompt in of("edit"))
    assert set(kinds) == {"Rename", "Change", "Remove", "Add"}
    assert min(kinds.values()) >= 4
