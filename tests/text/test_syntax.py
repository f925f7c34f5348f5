"""Every grammar loads and reads a line of its language; names of languages as editors give them."""

import pytest

from localdflash.text.syntax import language_of, parse

LINES = {
    "c": "int add(int a, int b) { return a + b; }",
    "cpp": "template <class T> T add(T a, T b) { return a + b; }",
    "go": "package main\nfunc add(a, b int) int { return a + b }",
    "java": "class A { int add(int a, int b) { return a + b; } }",
    "javascript": "const add = (a, b) => a + b;",
    "lua": "local function add(a, b) return a + b end",
    "python": "def add(a, b):\n    return a + b",
    "rust": "fn add(a: u8, b: u8) -> u8 { a + b }",
    "tsx": "const a = (b: number) => <p>{b}</p>;",
    "typescript": "const add = (a: number, b: number): number => a + b;",
}


@pytest.mark.parametrize("language", LINES)
def test_a_line_of_every_language(language: str) -> None:
    tree = parse(language, LINES[language])
    assert tree
    assert not tree.root_node.has_error
    wrong = parse(language, LINES[language][:-1] + "((((")
    assert wrong
    assert wrong.root_node.has_error


@pytest.mark.parametrize(
    ("path", "editors_name", "language"),
    [
        ("a.py", "", "python"),
        ("A.PY", "", "python"),
        ("a.h", "cpp", "cpp"),
        ("a.h", "", "c"),
        ("a", "typescriptreact", "tsx"),
        ("a.jsx", "javascriptreact", "javascript"),
        ("a.txt", "plaintext", ""),
        ("a", "", ""),
    ],
)
def test_the_language_of_a_file(path: str, editors_name: str, language: str) -> None:
    assert language_of(path, editors_name) == language


def test_no_grammar_no_tree_and_half_characters_do_no_harm() -> None:
    assert parse("cobol", "ADD 1 TO X") is None
    assert parse("python", "x = '\ud800'")
