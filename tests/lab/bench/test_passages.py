import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.lab.bench import typing
from localdflash.lab.bench.passages import Commit, TypingJob, additions, count_keys, from_line, next_key
from localdflash.lab.bench.typing_replay import TypingOptions
from localdflash.lab.bench.typist import AcceptedText, find_agreeing_part
from localdflash.lab.scripts.keys_saved import type_jobs
from localdflash.lsp.engine_completer import CompletionClient, CompletionSource, Event

texts = st.text("ab \n\t:é😀", max_size=60)


def typed_out(job: TypingJob) -> str:
    """Return the file after everything was done to it."""
    text = job.text
    for passage in job.passages:
        text = text[: passage.start] + passage.text + text[passage.start + passage.removed :]
    return text


@given(texts, st.booleans())
def test_keys_type_the_whole_text(text: str, at_line_start: bool) -> None:
    rest, keys, before = text, 0, "\n" if at_line_start else "x"
    while rest:
        key = next_key(before.endswith("\n"), rest)
        assert key
        assert rest.startswith(key)
        assert len(key) == 1 or not key.strip()
        before, rest, keys = before + key, rest[len(key) :], keys + 1
    assert keys == count_keys(text, at_line_start)


@given(texts, texts)
def test_additions_turn_one_text_into_the_other(before: str, after: str) -> None:
    assert typed_out(TypingJob("a", before, tuple(additions(before, after)))) == after


Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "Ada")
        monkeypatch.setenv(f"{name}_EMAIL", "ada@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")

    def run(*arguments: str) -> str:
        return subprocess.run(["git", "-C", tmp_path, *arguments], check=True, capture_output=True, text=True).stdout

    run("init", "-q")
    return run


def test_a_commit_s_additions_are_typed(git: Git, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "old.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "gone.py").write_text("gone\n")
    (tmp_path / "other.py").write_text("other\n")
    (tmp_path / "outside.py").symlink_to("/etc/hosts")
    git("add", "."), git("commit", "-qm", "1")
    (tmp_path / "src" / "old.py").write_text("zero\none\n2\nthree\n")
    (tmp_path / "new -é.py").write_text("fresh\n")
    (tmp_path / "picture.bin").write_bytes(b"\0\1")
    (tmp_path / "gone.py").unlink()
    git("add", "."), git("commit", "-qm", "2")
    commit = Commit("HEAD", tmp_path / "src")
    jobs = {job.name: job for job in commit.jobs()}
    assert list(jobs) == ["new -é.py", "src/old.py"]
    assert typed_out(jobs["new -é.py"]) == "fresh\n"
    assert [passage.text for passage in jobs["src/old.py"].passages] == ["zero\n", "2\n"]
    assert typed_out(jobs["src/old.py"]) == "zero\none\n2\nthree\n"
    (tmp_path / "before").mkdir()
    commit.unpack(tmp_path / "before")
    assert (tmp_path / "before" / "src" / "old.py").read_text() == "one\ntwo\nthree\n"
    assert (tmp_path / "before" / "gone.py").is_file()
    assert not (tmp_path / "before" / "new -é.py").exists()
    assert not (tmp_path / "before" / "outside.py").is_symlink()


@pytest.mark.parametrize("revision", ["nothing", "--help"])
def test_an_unknown_commit_is_refused(revision: str, git: Git, tmp_path: Path) -> None:
    git("commit", "--allow-empty", "-qm", "1")
    with pytest.raises(UsageError, match="--commit"):
        Commit(revision, tmp_path)


@pytest.mark.parametrize(
    ("ghost", "rest", "accepted"),
    [
        ("return x", "return x\n", AcceptedText("all", "return x")),
        ("return x\n    y", "return x\n    z", AcceptedText("line", "return x")),
        ("\n    a = 1\n    b", "\n    a = 1\n", AcceptedText("line", "\n    a = 1")),
        ("return y", "return x", AcceptedText("word", "return")),
        (" = foo(1)", " = foobar(2)", None),
        ("x = 1", "x = 2", None),
        ("\n\n", "\n\n", None),
    ],
)
def test_the_largest_agreeing_part_is_accepted(ghost: str, rest: str, accepted: AcceptedText | None) -> None:
    assert find_agreeing_part(ghost, rest) == accepted


@given(st.text("ab =\n", min_size=1), st.text("ab =\n", min_size=1))
def test_a_disagreeing_suggestion_is_not_accepted(ghost: str, rest: str) -> None:
    if accepted := find_agreeing_part(ghost, rest):
        assert rest.startswith(accepted.text)
        assert ghost.startswith(accepted.text)
        assert len(accepted.text.strip()) >= 2


WHOLE = "import os\n\n\ndef size(path):\n    found = os.stat(path)\n    return found.st_size\n\n\nprint(size('.'))\n"
JOB = from_line("size.py", WHOLE, 5, 60)
MANNER = TypingOptions("neovim", 60, 0, 20.0)


def test_jobs_of_files_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/one.py", "b/c/two.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    jobs = typing.of_files(["a/one.py", "b/c/two.py:5"], MANNER)
    assert [job.name for job in jobs] == ["a/one.py", "b/c/two.py"]
    assert jobs[1].passages == JOB.passages
    for wrong in (["a/one.py", "./a/one.py:2"], ["missing.py"], ["a/one.py:99"], ["a"]):
        with pytest.raises(UsageError):
            typing.of_files(wrong, MANNER)


def test_jobs_of_held_out_files() -> None:
    jobs = typing.held_out(None, MANNER)
    assert len({job.name for job in jobs}) == typing.DEFAULT_FILES == 20
    assert len(typing.held_out(3, MANNER)) == 3


class Knowing(CompletionClient):
    """Has the rest of the line."""

    def __init__(self) -> None:
        super().__init__(lambda _: None, lambda _: None)

    async def find(self) -> CompletionSource:
        raise NotImplementedError

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        await asyncio.sleep(0.03)
        before = f"{body['prefix']}{body['middle']}"
        text = WHOLE[len(before) :].partition("\n")[0] if WHOLE.startswith(before) else ""
        yield {"index": 0, "text": text, "confidence": 0.9}
        yield {"index": 0, "text": "", "finish": "line", "confidence": 0.9, "tokens": 3}


def test_a_replay_is_reproducible_and_saves_keys() -> None:
    first, second = (type_jobs([JOB], TypingOptions("neovim", 60, 0), Knowing()) for _ in range(2))
    assert first == second
    assert first["keystrokes_saved"] > 0.3
    assert first["accepted"]["all"] >= 1
    assert (first["stale"], first["flicker"], first["errors"]) == (0, 0, [])
