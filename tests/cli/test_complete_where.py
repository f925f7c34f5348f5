"""The cursor of a completion: FILE:LINE:COL, its place in the text, and files that have none."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.cli.complete_command import offset_of, parse_place, read_text


@pytest.mark.parametrize(
    ("place", "path", "line", "column"),
    [
        ("app.py:12:9", "app.py", 12, 9),
        ("a:b:c.py:1:1", "a:b:c.py", 1, 1),
        ("C:\\code\\app.py:3:4", "C:\\code\\app.py", 3, 4),
        ("dir/app.py:007:1", "dir/app.py", 7, 1),
    ],
)
def test_places(place: str, path: str, line: int, column: int) -> None:
    assert parse_place(place) == (Path(path), line, column)


@pytest.mark.parametrize(
    "place",
    [
        *("app.py", "app.py:1", "app.py:1:", "app.py::1", "app.py:a:1", "app.py:-1:1", "app.py:1:1.0", "", ":1:1"),
        *("app.py:\u0663:1", "app.py: 1:1", f"app.py:{'9' * 5000}:1"),
    ],
)
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(UsageError, match=r"is not FILE:LINE:COL, for example app\.py:12:9"):
        parse_place(place)


@pytest.mark.parametrize(
    ("line", "column", "said"),
    [(3, 6, "column 6 is outside line 3, whose last column is 5")],
)
def test_a_cursor_outside_of_the_file(line: int, column: int, said: str, file: Path, fails: Callable[..., str]) -> None:
    assert fails(2, "complete", f"{file}:{line}:{column}") == said


def test_files_that_cannot_be_completed(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin-1"))
    for name, said in {
        "absent.py": "no such file",
        ".": "not a file",
        "image.png": "a binary file, not text",
        "latin.py": "not UTF-8 at byte 2: convert it first",
    }.items():
        path = tmp_path / name
        assert fails(2, "complete", f"{path}:1:1") == f"{path}: {said}"


def test_a_huge_file_is_not_even_read(tmp_path: Path, fails: Callable[..., str]) -> None:
    path = tmp_path / "huge.py"
    with path.open("wb") as stream:
        stream.truncate(1 << 33)
    assert fails(2, "complete", f"{path}:1:1") == f"{path}: larger than 4 MB: not a source file to complete"


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
def test_a_named_pipe_does_not_hang(tmp_path: Path, fails: Callable[..., str]) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a file" in fails(2, "complete", f"{tmp_path / 'pipe.py'}:1:1")


def test_control_characters_of_a_name_do_not_reach_the_terminal(fails: Callable[..., str]) -> None:
    assert "\\x1b[31m" in fails(2, "complete", "\x1b[31m.py:1:1")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x")

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"mine\.py: cannot read: Permission denied"):
        read_text(path)


@given(st.text(alphabet="ab\n\r\x0b\x0c\x1c\x85\u2028é漢\U0001f600 ", max_size=40), st.data())
def test_every_place_of_a_text_is_a_line_and_a_column(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    if text[offset - 1 : offset + 1] == "\r\n":
        with pytest.raises(UsageError, match="column"):
            offset_of(text, line, column)  # between the two characters of a line end
    else:
        assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("ab\n", 3, 1, "line 3 is outside the file, whose last line is 2"),
        ("ab\n", 0, 1, "line 0 is outside"),
        ("ab\n", -1, 1, "line -1 is outside"),
        ("ab\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab\r\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab", 1, 0, "column 0 is outside line 1"),
    ],
)
def test_offsets_outside_are_named(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        offset_of(text, line, column)
