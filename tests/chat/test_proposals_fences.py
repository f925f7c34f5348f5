"""Code fences that name their file, or are meant for the one that is attached."""

from pathlib import Path

import pytest

from localdflash.chat.proposals import propose
from tests.chat.workplace import BOX, after, made, problem

AREA = 'def area(w, h):\n    """Never negative."""\n    return abs(w * h)\n'
REPLACED = BOX.replace("def area(w, h):\n    return w * h\n", AREA)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "work", {"src/box.py": BOX, "notes.md": "# Notes\n\none\ntwo\nthree\n"})


NAMINGS = [
    "```python path=src/box.py\n{}```",
    '```python title="src/box.py"\n{}```',
    "```src/box.py\n{}```",
    "```python:src/box.py\n{}```",
    "```python\n# src/box.py\n{}```",
    "src/box.py:\n```python\n{}```",
    "`src/box.py`\n\n```python\n{}```",
    "### 1. `src/box.py`\n```python\n{}```",
    "File: src/box.py (updated)\n```python\n{}```",
    "Change `src/box.py` like this:\n```python\n{}```",
    "src/box.py\n```\n{}```",
]


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_fence_names_its_file(root: Path, naming: str) -> None:
    assert after(root, naming.format(AREA)) == REPLACED


@pytest.mark.parametrize("naming", NAMINGS[::5])
def test_a_new_file(tmp_path: Path, naming: str) -> None:
    (tmp_path / "work").mkdir()
    found = propose(naming.format("x = 1\n"), tmp_path / "work")
    assert [(one.path, one.kind, one.before, one.after) for one in found] == [("src/box.py", "new", None, b"x = 1\n")]


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nprint(1)\n```",
        "Run `src/box.py`:\n```console\n$ python src/box.py\n2\n```",
        "It prints:\n```\n2\n```",
        "```12:20:src/box.py\ndef area(w, h):\n```",
        "I looked at `src/box.py` and `notes.md`:\n```python\nprint(1)\n```",
        "```python\n# os.path\nx = 1\n```",
    ],
)
def test_code_to_read_is_no_proposal(root: Path, answer: str) -> None:
    assert propose(answer, root) == []


def test_the_attached_file_is_meant_by_code_in_its_language(root: Path) -> None:
    answer = f"```python\n{AREA}```\nRun it:\n```sh\npython src/box.py\n```\nIt prints:\n```\n2\n```\n"
    assert after(root, answer, attached=("src/box.py",)) == REPLACED
    assert propose(answer, root, ["src/box.py", "notes.md"]) == []
    assert after(root, f"```\n{AREA}```", attached=("src/box.py", "src/box.py")) == REPLACED


def test_definitions_one_by_one(root: Path) -> None:
    size = "    @property\n    def size(self):\n        return 0\n"
    grow = "def grow(self):\n    self.w += 2\n    self.h += 2\n"
    found = after(
        root, f"```python\n{AREA}```\nand\n```python\n{grow}```\nand\n```python\n{size}```", attached=("src/box.py",)
    )
    wanted = REPLACED.replace("return area(self.w, self.h)", "return 0")
    assert found == wanted.replace("self.w += 1\n", "self.w += 2\n        self.h += 2\n")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import math\n\n# ... existing code ...\n", "leaves parts out: '# ... existing code ...'"),
        ("def volume(a):\n    return a\n", "has no 'volume'"),
        ("def area(w, h):\n    return (w\n", "cannot be read as code"),
        ("print(area(1, 2))\n", "not the whole file"),
        (f"import cmath\n\n{AREA}", "does not say where this belongs: 'import cmath'"),
        ("class Box:\n    def grow(self):\n        self.w += 2\n", "leaves out '"),
        ("def size(self):\n    return 0\n", "leaves out '@property'"),
        ("def grow(w):\n    return w\n", "another kind of thing"),
        (f"{AREA}\n\n{AREA}", "defines 'area' twice"),
    ],
)
def test_code_that_cannot_be_placed(root: Path, code: str, reason: str) -> None:
    assert reason in problem(root, f"```python src/box.py\n{code}```")


def test_a_name_that_the_file_has_twice(root: Path) -> None:
    (root / "src/box.py").write_text(
        "class A:\n    def go(self):\n        pass\n\n\nclass B:\n    def go(self):\n        pass\n"
    )
    assert "'go', which the file has 2 times" in problem(root, "```python src/box.py\ndef go(self):\n    return 1\n```")


def test_a_fence_in_a_fence_is_not_guessed_at(root: Path) -> None:
    answer = "notes.md:\n```markdown\n# Notes\n\n```python\nx\n```\n\none\ntwo\n```\n"
    assert "a fence within the fence" in problem(root, answer)
    assert after(root, answer.replace("```markdown", "````markdown").replace("two\n```", "two\n````"), "notes.md") == (
        "# Notes\n\n```python\nx\n```\n\none\ntwo\n"
    )


GO = """\
package a

import "fmt"

// F does.
func F() int {
\treturn 1
}

func (b *B) G() {
\tfmt.Println()
}
"""
RUST = """\
use std::fmt;

#[derive(Debug)]
struct A {
    x: u8,
}

impl A {
    fn go(&self) -> u8 {
        1
    }
}
"""
TYPESCRIPT = """\
import x from "x";

export function f(a: number) {
  return a;
}

export const b = 1;
"""


@pytest.mark.parametrize(
    ("name", "old", "code", "wanted"),
    [
        (
            "a.go",
            GO,
            "// F does it.\nfunc F() int {\n\treturn 2\n}\n",
            GO.replace("F does", "F does it").replace("return 1", "return 2"),
        ),
        ("a.rs", RUST, "fn go(&self) -> u8 {\n    2\n}\n", RUST.replace("        1", "        2")),
        (
            "a.ts",
            TYPESCRIPT,
            "export function f(a: number) {\n  return { ...x, a };\n}\n",
            TYPESCRIPT.replace("return a", "return { ...x, a }"),
        ),
    ],
)
def test_definitions_of_other_languages(tmp_path: Path, name: str, old: str, code: str, wanted: str) -> None:
    root = made(tmp_path / "work", {name: old})
    assert after(root, f"```{name}\n{code}```", name) == wanted
