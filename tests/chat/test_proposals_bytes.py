"""What a change leaves as it is: byte order mark, line ends, the end of the last line, trailing blanks."""

from pathlib import Path

import pytest

from localdflash.chat.proposals import propose
from tests.chat.workplace import made

DIFF = "```diff\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2.5\n three\n```"
EXCHANGE = "a.txt\n<<<<<<< SEARCH\ntwo\n=======\n2\n2.5\n>>>>>>> REPLACE\n"
FENCE = "a.txt\n```\none\n2\n2.5\nthree\n```"
ANSWERS = [DIFF, EXCHANGE, FENCE, DIFF.replace("\n", "\r\n")]


def _after(root: Path, answer: str) -> bytes | None:
    found = propose(answer, root)
    assert [one.problem for one in found] == [""]
    return found[0].after


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\ntwo\nthree\n", b"one\n2\n2.5\nthree\n"),
        (b"one\r\ntwo\r\nthree\r\n", b"one\r\n2\r\n2.5\r\nthree\r\n"),
        (b"\xef\xbb\xbfone\r\ntwo\r\nthree", b"\xef\xbb\xbfone\r\n2\r\n2.5\r\nthree"),
        (b"one\r\ntwo\nthree\r\n", b"one\r\n2\r\n2.5\r\nthree\r\n"),
    ],
)
def test_all_else_stays(tmp_path: Path, answer: str, before: bytes, after: bytes) -> None:
    root = made(tmp_path / "work", {"a.txt": before})
    assert _after(root, answer) == after


@pytest.mark.parametrize("answer", [DIFF.replace(" one\n", " one\n"), EXCHANGE])
def test_blanks_at_line_ends_stay_where_nothing_changes(tmp_path: Path, answer: str) -> None:
    root = made(tmp_path / "work", {"a.txt": "one  \ntwo \nthree\t\n"})
    assert _after(root, answer) == b"one  \n2\n2.5\nthree\t\n"


@pytest.mark.parametrize(
    ("before", "hunk", "after"),
    [
        (b"a\nb", " a\n-b\n\\ No newline at end of file\n+b\n", b"a\nb\n"),
        (b"a\nb\n", " a\n-b\n+b\n\\ No newline at end of file\n", b"a\nb"),
        (b"a\nb", " a\n-b\n+c\n", b"a\nc"),
        (b"a\nb", " a\n b\n+c\n", b"a\nb\nc"),
    ],
)
def test_the_end_of_the_last_line(tmp_path: Path, before: bytes, hunk: str, after: bytes) -> None:
    root = made(tmp_path / "work", {"a.txt": before})
    counts = [sum(line[:1] in signs for line in hunk.split("\n") if line) for signs in (" -", " +")]
    head = f"--- a/a.txt\n+++ b/a.txt\n@@ -1,{counts[0]} +1,{counts[1]} @@\n"
    assert _after(root, f"```diff\n{head}{hunk}```") == after


@pytest.mark.parametrize("separator", ["\x0c", "\u2028", "\r"])
def test_only_line_feeds_end_lines(tmp_path: Path, separator: str) -> None:
    text = f"one\na{separator}b\nthree\n"
    root = made(tmp_path / "work", {"a.txt": text})
    answer = f"```diff\n--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n-one\n+1\n a{separator}b\n three\n```"
    assert _after(root, answer) == text.replace("one", "1").encode()
