"""The cursor of a completion: FILE:LINE:COL, its offset in the text, and files that cannot be completed."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.cli.complete_command import offset_of, parse_cursor


def test_bad_cursors(fails: Callable[..., str]) -> None:
    for place in (
        *("app.py", "app.py:1", "app.py:1:", "app.py::1", "app.py:a:1", "app.py:-1:1", "app.py:1:1.0", "", ":1:1"),
        *("app.py:\u0663:1", "app.py: 1:1", f"app.py:{'9' * 5000}:1"),
    ):
        with pytest.raises(UsageError, match=r"FILE:LINE:COL"):
            parse_cursor(place)
    assert "\\x1b[31m" in fails(2, "complete", "\x1b[31m.py:1:1")


def test_files_that_cannot_be_completed(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin-1"))
    with (tmp_path / "huge.py").open("wb") as stream:
        stream.truncate(1 << 33)  # more than could be read
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe.py")  # reading it would wait for good
    for name, message in {
        "absent.py": "no such file",
        ".": "not a file",
        **({} if sys.platform == "win32" else {"pipe.py": "not a file"}),
        "image.png": "binary",
        "latin.py": "not UTF-8 at byte 2",
        "huge.py": "larger than 4 MB",
    }.items():
        line = fails(2, "complete", f"{tmp_path / name}:1:1")
        assert line.startswith(f"{tmp_path / name}: ")
        assert message in line


@given(st.text(alphabet="ab\n\r\x0b\x0c\x1c\x85\u2028é漢\U0001f600 ", max_size=40), st.data())
def test_offset_of_inverts_line_and_column(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    if text[offset - 1 : offset + 1] == "\r\n":
        with pytest.raises(UsageError, match="column"):
            offset_of(text, line, column)  # between the two characters of a line end
    else:
        assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "last"), [("ab\n", 3, 1, 2), ("ab\n", 0, 1, 2), ("ab\r\n", 1, 4, 3), ("ab", 1, 0, 3)]
)
def test_cursors_outside_of_the_file(text: str, line: int, column: int, last: int) -> None:
    outside = f"line {line}" if line != 1 else f"column {column}"
    with pytest.raises(UsageError, match=rf"^{outside} .*{last}"):
        offset_of(text, line, column)
