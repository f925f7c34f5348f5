"""Grammars of all languages."""

from localdflash.text.syntax import parse

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


def test_every_grammar_parses_a_line_of_its_language() -> None:
    for language, line in LINES.items():
        tree, wrong = parse(language, line), parse(language, line[:-1] + "((((")
        assert tree, language
        assert wrong, language
        assert (tree.root_node.has_error, wrong.root_node.has_error) == (False, True), language
    assert parse("cobol", "ADD 1 TO X") is None
    assert parse("python", "x = '\ud800'")
