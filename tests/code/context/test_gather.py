"""Gathered context: its order, its limits, and its stability while a user types."""

from dataclasses import replace
from itertools import pairwise

import pytest

from localdflash.code.context.context import OpenFile
from localdflash.code.context.edits import EditHistory
from localdflash.code.context.gather import gather
from tests.code.context.conftest import Opened, Opens

FILES = {
    "src/pkg/__init__.py": "from pkg.shapes import Circle\n",
    "src/pkg/shapes.py": (
        "class Circle:\n    '''Round.'''\n    def area(self): pass\n\n\ndef unused(): pass\n\n\nSIZE = 3\n"
    ),
    "src/pkg/tools/util.py": "def compute_area(shape, unit):\n    '''Area in a unit.\n\n    More.'''\n    return 1\n",
    "src/pkg/tools/deep.py": "def helper(): pass\n",
    "src/pkg/near.py": "def neighbour(): pass\n",
    "src/far/other.py": "def neighbour_of_none(): pass\ndef plain(): pass\n",
    "tests/test_x.py": "def only_in_tests(): pass\n",
    "web/app.ts": "export function render(a: number): string { return '' }\n",
    "go/util/u.go": "package util\nfunc Join(a string) string { return a }\n",
}
MAIN = """\
import os
from pkg import Circle
from pkg.shapes import SIZE
from . import near
from .tools import util


def mine(): pass


def main():
    c = Circle()
    print(SIZE, os.name)
    util.compute_area(c, 1)
    near.neighbour()
    mine()
    neighbour_of_none()
    plain()
    only_in_tests()

"""


@pytest.fixture
def opened(open_workspace: Opens) -> Opened:
    return open_workspace(FILES | {"src/pkg/main.py": MAIN})


def document(opened: Opened, text: str = MAIN, name: str = "src/pkg/main.py", language: str = "python") -> OpenFile:
    return OpenFile(opened.root / name, name, language, text)


def test_imports_then_names_near_the_cursor(opened: Opened) -> None:
    parts = gather(opened.workspace, document(opened), 18, [], [], 8_000)
    assert [(part.kind, part.name, part.text) for part in parts] == [
        ("import", "src/pkg/shapes.py", "class Circle:\n    '''Round.'''\n    def area(self): pass\nSIZE = 3"),
        ("definition", "src/pkg/tools/util.py", "def compute_area(shape, unit):\n    '''Area in a unit.'''"),
        ("definition", "src/pkg/near.py", "def neighbour():"),
        ("definition", "src/far/other.py", "def neighbour_of_none():"),
    ]


def test_far_imports_and_definitions_of_the_file_itself(opened: Opened) -> None:
    far = MAIN.replace("\n\ndef main", "\n" + "x = 1\n" * 60 + "\ndef main")
    *others, own = gather(opened.workspace, document(opened, far), far.count("\n") - 2, [], [], 8_000)
    assert (own.name, own.text.split("\n\n")[1:]) == ("src/pkg/main.py", ["def mine():"])
    assert own.text.startswith("from pkg import Circle\n")
    assert others[0].name == "src/pkg/shapes.py"


def test_similar_passages_of_other_files_recently_edited_or_open(opened: Opened) -> None:
    code = "\n".join(f"total = total + price_{number} * quantity" for number in range(30))
    current = document(opened, f"def cost(total, quantity):\n{code}\n", "src/far/cost.py")
    padding = "\n".join(f"unrelated_{number} = nothing" for number in range(60))
    others = [
        document(opened, f"{padding}\n{code}\n{padding}", "src/far/b.py"),
        document(opened, code, "src/far/z.py"),
        document(opened, padding, "src/far/c.py"),
    ]
    edits = EditHistory()
    edits.changed("src/far/b.py", "src/far/b.py", 0, ["old"], ["new"], 0.0)
    parts = gather(opened.workspace, current, 15, others, edits.diffs(8), 20_000)
    assert [(part.kind, part.name) for part in parts] == [
        ("recent", "src/far/b.py"),
        ("open", "src/far/z.py"),
        ("edit", "src/far/b.py"),
    ]
    assert parts[0].weight < parts[1].weight  # by name: weights change while one types
    assert "price_10" in parts[0].text
    assert parts[0].text.count("\n") < 40
    assert parts[2].text == "@@ -1,1 +1,1 @@\n-old\n+new"


def test_a_file_of_the_same_name_in_another_folder_is_another_file(opened: Opened) -> None:
    code = "\n".join(f"total = total + price_{number}" for number in range(30))
    current = document(opened, code, "src/far/cost.py")
    second = replace(current, path=opened.root / "second/src/far/cost.py")  # a name is relative to its folder
    old_version = replace(current, path=None)
    pieces = gather(opened.workspace, current, 15, [current, second, old_version], [], 20_000)
    assert [(piece.kind, piece.name) for piece in pieces] == [("open", current.name)]


def test_the_characters_are_limited_and_the_order_is_deterministic(opened: Opened) -> None:
    edits = EditHistory()
    for number in range(9):
        edits.changed(f"{number}.py", f"{number}.py", 0, ["a" * 50], ["b" * 50], number)
    others = [document(opened, MAIN + f"# {number}", f"o{number}.py") for number in range(6)]
    for room in (0, 1, 40, 100, 300, 1_000, 100_000):
        parts = gather(opened.workspace, document(opened), 18, others, edits.diffs(8), room)
        assert sum(len(part.text) for part in parts) <= room
        assert all(part.text and 0 < part.weight <= 1 for part in parts)
        assert gather(opened.workspace, document(opened), 18, others[::-1], edits.diffs(8), room) == parts


def test_only_a_finished_name_of_another_file_changes_the_context(opened: Opened) -> None:
    typed = "".join(
        f"    value_{number} = compute({number}) + helper_value\n" if number % 4 else "    near.neighbour(value)\n"
        for number in range(12)
    )
    others = [document(opened, MAIN.replace("main", f"main{number}"), f"o{number}.py") for number in range(3)]
    edits, answers = EditHistory(), []
    text = MAIN.replace("    near.neighbour()\n", "")
    for end in range(len(typed)):
        current = document(opened, text + typed[:end])
        line = current.text.count("\n")
        lines = current.text.split("\n")
        edits.changed(current.name, current.name, line, [lines[line][:-1]], [lines[line]], end / 10)
        answers.append(gather(opened.workspace, current, line, others, edits.diffs(8, (current.name, line)), 8_000))
    prompts = [[(part.name, part.text) for part in answer] for answer in answers]
    changes = [(before, after) for before, after in pairwise(prompts) if before != after]
    assert len(changes) <= 4, len(answers)
    definitions = [[part for part in answer if part.kind in {"import", "definition"}] for answer in answers]
    for before, after in pairwise(definitions):
        assert after[: len(before)] == before or len(after) <= len(before)  # more only at the end
