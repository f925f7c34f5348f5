"""Attachable files: search, reading, and refusal under every spelling of a path."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import MAX_ATTACHED_BYTES, AttachableFiles, FileMatch, find_code_file
from localdflash.chat.fuzzy import Haystack, match_positions
from localdflash.chat.mentions import attach_mentions

WAIT_SECONDS = 20.0  # seconds
BOX = "class Box:\n    def __init__(self):\n        self.x = 1\n\n    @property\n    def add(self):\n        return 2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], Path]:
    def put(name: str, text: str = "x = 1\n") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return put


@pytest.fixture
def files(folder: Path) -> Iterator[AttachableFiles]:
    opened = AttachableFiles(folder)
    yield opened
    opened.close()


def names(hits: list[FileMatch]) -> list[str]:
    return [hit.name for hit in hits]


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def test_symbols_are_found_and_read(files: AttachableFiles, write: Callable[..., Path]) -> None:
    write("box.py", BOX)
    assert wait_until(lambda: "box.py:Box.add" in names(files.find("add")))
    assert names(files.find("Box"))[:2] == ["box.py", "box.py:Box"]
    assert names(files.find("box.py:")) == ["box.py:Box", "box.py:Box.add"]
    (hit,) = files.find("box.py:ad")
    assert "".join(hit.name[at] for at in hit.marked) == "ad"
    found = files.read(hit.path, hit.symbol)
    assert (found.kind, found.name) == ("symbol", "box.py:Box.add")
    assert found.text == "    @property\n    def add(self):\n        return 2\n"


@pytest.mark.parametrize("separator", ["\f", "\x1c", "\x85", "\u2028"])
def test_only_line_feeds_separate_lines(files: AttachableFiles, write: Callable[..., Path], separator: str) -> None:
    wanted = "def wanted():\n    return 1\n"
    write("a.py", f"# one{separator}two\n{wanted}\n\ndef other():\n    return 2\n")
    assert files.read("a.py", "wanted").text == wanted
    assert files.read("a.py", "2-3").text == wanted


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("0-1", "a.py:0-1: expected lines as first-last, counted from 1"),
        ("3-2", "a.py:3-2: expected lines as first-last, counted from 1"),
        ("1-9", "a.py:1-9: the file has 1 lines"),
        ("Nothing", "a.py defines no Nothing"),
        ("²", "a.py defines no ²"),
    ],
)
def test_missing_parts_are_refused(files: AttachableFiles, write: Callable[..., Path], part: str, reason: str) -> None:
    write("a.py")
    with pytest.raises(UsageError) as error:
        files.read("a.py", part)
    assert str(error.value) == reason


def test_unreadable_files_are_refused(files: AttachableFiles, folder: Path, write: Callable[..., Path]) -> None:
    (folder / "image.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (folder / "large.txt").write_text("x" * (MAX_ATTACHED_BYTES + 1))
    (folder / "huge.txt").write_text("x" * 2_200_000)
    (folder / "most.txt").write_text("x" * MAX_ATTACHED_BYTES)
    (folder / "inside").mkdir()
    os.mkfifo(folder / "pipe")
    assert len(files.read("most.txt").text) == MAX_ATTACHED_BYTES
    reasons = {
        "image.png": "image.png: not UTF-8 text",
        "latin.txt": "latin.txt: not UTF-8 text",
        "large.txt": "large.txt: too large (256 KB, at most 256 KB)",
        "huge.txt": "huge.txt: too large (2.1 MB, at most 256 KB)",
        "inside": "inside: is a folder; name a file in it",
        "nothing.py": "nothing.py: no such file",
        "nul\0.py": "nul␀.py: no such file",
        "pipe": "pipe: no such file",
    }
    for name, reason in reasons.items():
        with pytest.raises(UsageError) as error:
            files.read(name)
        assert str(error.value) == reason


def test_listing_limit_is_reported(folder: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.code.context import listing

    for number in range(10):
        write(f"deep/{number}.py")
    write("top.py")
    notices: list[str] = []
    monkeypatch.setattr(listing, "MAX_FILES", 5)
    files = AttachableFiles(folder, notices.append)
    assert names(files.find(""))[0] == "top.py"
    assert len(files.find("")) == 5
    assert notices == ["only 5 files are listed; type the path of any other"]
    assert files.read("deep/9.py").name == "deep/9.py"
    files.close()


CANARY = "CANARY_5be0"
SECRET = [".env", ".env.local", "prod.ENV", "Secrets.PY", "id_rsa", ".ssh/config", "deep/.aws/credentials", "x.pem"]
IGNORED = ["ignored.py", "out/a.py", "deep/private.py", "mine/notes.md"]
VERSIONED = [".git/config"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (*SECRET, *IGNORED, *VERSIONED, "plain.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def {CANARY}():\n    pass\n" if name != "plain.py" else "def plain():\n    pass\n")
    (root / ".gitignore").write_text("ignored.py\nout/\n")
    (root / "deep" / ".gitignore").write_text("private.py\n")
    (root / ".localdflashignore").write_text("mine/\n")
    (tmp_path / "outside.txt").write_text(CANARY)
    (tmp_path / "project-two").mkdir()
    (tmp_path / "project-two" / "a.txt").write_text(CANARY)
    return root


@pytest.fixture
def project_files(project: Path) -> Iterator[AttachableFiles]:
    opened = AttachableFiles(project)
    yield opened
    opened.close()


def spellings(project: Path, name: str) -> list[str]:
    """Return spellings of one path."""
    return [
        name,
        f"./{name}",
        f"{project}/{name}",
        f"plain/../{name}",
        f"../{project.name}/{name}",
        f"{project}//{name}",
    ]


@pytest.mark.parametrize("name", [*SECRET[::2], *IGNORED[1:], *VERSIONED])
def test_secret_and_ignored_files_are_never_listed_or_read(
    project_files: AttachableFiles, project: Path, name: str
) -> None:
    for query in ("", CANARY, name, name.rsplit("/", maxsplit=1)[-1], *name.lower()):
        hits = project_files.find(query, 1_000)
        assert not {hit.path.lower() for hit in hits} & {one.lower() for one in (*SECRET, *IGNORED, *VERSIONED)}
    for spelling in spellings(project, name):
        with pytest.raises(UsageError) as error:
            project_files.read(spelling)
        assert CANARY not in str(error.value)
        assert "\n" not in str(error.value)
        for mention in (f"@{spelling}", f'@"{spelling}"', f"@{spelling}:1-2", f"@{spelling}:{CANARY}"):
            found = attach_mentions(f"what is in {mention} here", project_files)
            assert found.attachments == ()
            assert len(found.refused) == 1
        assert project_files.relative_path(spelling) is None


@pytest.mark.parametrize("spelling", ["../outside.txt", "{root}/../outside.txt", "../project-two/a.txt", "/etc/passwd"])
def test_files_outside_the_folder_are_refused(project_files: AttachableFiles, project: Path, spelling: str) -> None:
    with pytest.raises(UsageError, match="is outside of this folder"):
        project_files.read(spelling.format(root=project))


@pytest.mark.parametrize("target", [".env", "out/a.py", "../outside.txt", ".git/config", "/etc/passwd"])
def test_links_to_refused_files_are_refused(project_files: AttachableFiles, project: Path, target: str) -> None:
    (project / "linked").symlink_to(project.parent / "project-two")
    assert not [hit for hit in project_files.find("", 100) if hit.path.startswith("linked")]
    with pytest.raises(UsageError, match="is outside"):
        project_files.read("linked/a.txt")
    (project / "link.py").symlink_to(target if target.startswith("/") else project / target)
    assert "link.py" not in [hit.path for hit in project_files.find("link")]
    with pytest.raises(UsageError):
        project_files.read("link.py")
    assert attach_mentions("see @link.py", project_files).attachments == ()


def test_changed_ignore_rules_apply_at_once(project_files: AttachableFiles, project: Path) -> None:
    assert project_files.read("plain.py").text
    with open(project / ".gitignore", "a") as rules:
        rules.write("plain.py\n")
    with pytest.raises(UsageError, match="ignored by"):
        project_files.read("plain.py")


def test_unprintable_names_are_not_listed(project_files: AttachableFiles, project: Path) -> None:
    for name in ("a\x1b]0;x\x07.py", "b\nc.py", "d\u202e.py", os.fsdecode(b"e\xff.py")):
        (project / name).write_text("x")
    assert [hit.path for hit in project_files.find("", 100)] == [
        ".gitignore",
        ".localdflashignore",
        "plain.py",
        "deep/.gitignore",
    ]
    assert find_code_file(project_files) == "plain.py"


NAMES = st.text(alphabet="abAB/_.-ß", min_size=1, max_size=12)


def find_best(names: list[str], query: str, limit: int = 100) -> list[str]:
    return [names[at] for _, at in Haystack(names, "/").find_best(query, limit)]


def has_letters(query: str, name: str) -> bool:
    letters = iter(name.lower())
    return all(letter in letters for letter in query.lower())


@pytest.mark.parametrize(
    ("query", "better", "worse"),
    [
        ("lexer", "src/lexer.py", "src/lexer_test.py"),
        ("lexer", "deep/er/lexer.py", "lexer/a.py"),
        ("test", "test_a.py", "a_test.py"),
    ],
)
def test_better_match_comes_first(query: str, better: str, worse: str) -> None:
    assert find_best([worse, better], query) == [better, worse]


def test_scattered_letters_do_not_match() -> None:
    assert find_best(["a" + "x" * 60 + "b" + "x" * 60 + "c"], "abc") == find_best(["a"], "") == []


@given(st.lists(NAMES, max_size=20, unique=True), st.text(alphabet="abAB/_", min_size=1, max_size=4))
@settings(deadline=None)
def test_exactly_the_names_with_the_letters_in_order_are_found(names: list[str], query: str) -> None:
    found = find_best(names, query)
    assert len(found) == len(set(found))
    assert set(found) == {name for name in names if has_letters(query, name)}


@given(NAMES, st.text(alphabet="abAB/_.", min_size=1, max_size=5))
def test_match_positions_spell_the_query(name: str, query: str) -> None:
    assert match_positions("ab", "abxb") == (0, 1)  # adjacent, at the start too
    at = match_positions(query, name)
    assert list(at) == sorted(set(at))
    if at:
        assert "".join(name[one] for one in at).lower() == query.lower()
    else:
        assert not has_letters(query, name)
