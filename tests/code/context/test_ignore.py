"""Ignore files, against git itself where it is installed."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localdflash.code.context.ignore import IgnoreRules

FILES = ["a.py", "b.txt", "x/a.py", "x/b.txt", "x/y/a.py", "x/y/c.log", "z/a.py", "z/x/a.py"]
LINES = st.lists(
    st.sampled_from(
        [
            *("a.py", "/a.py", "*.py", "*.txt", "x", "x/", "/x", "/x/", "y/", "x/y", "x/*", "x/**", "**/y", "**/a.py"),
            *("z/**/a.py", "*", "/*", "**", "?.py", "[ab].py", "[!a].py", "x/a.py", "/z/x/", "# a comment", "", " "),
            *("!a.py", "!x/", "!x", "!*.py", "!/x/a.py", "!x/y/", "!*/", "!", "!z/x/a.py", "\\!a.py", "\\#", "a.py "),
            *("a.py\\ ", "x/\r", "***", "[", "[a", "x//y", "/", "//", "\\"),
        ]
    ),
    max_size=5,
)
needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def tree(top: Path) -> None:
    for name in FILES:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("")


def rules(top: Path, files: dict[str, str], own: bool = False) -> IgnoreRules:
    for folder, text in files.items():
        (top / folder / (".localdflashignore" if own else ".gitignore")).write_bytes(text.encode())
    return IgnoreRules(top)


def ignored_by_git(top: Path) -> set[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": ""}
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin", "-z"],
        cwd=top,
        env=environment,
        input="\0".join(FILES) + "\0",
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode in {0, 1}, asked.stderr
    return set(asked.stdout.split("\0")) - {""}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("repository")
    subprocess.run(["git", "init", "-q", str(top)], check=True)
    tree(top)
    return top


@needs_git
@given(LINES, LINES, LINES)
@example(["x/*", "!x/y/"], [], [])
@example(["*", "!*/", "!*.py"], [], [])
@example(["*.py"], ["!a.py"], [])
@example(["x/"], ["!a.py"], [])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_as_git_has_it(repository: Path, top: list[str], x: list[str], z: list[str]) -> None:
    found = rules(repository, {"": "\n".join(top), "x": "\n".join(x), "z": "\n".join(z) + "\n"})
    expected = ignored_by_git(repository)
    assert {name for name in FILES if found.ignored(name)} == expected
    for name in FILES:  # level by level, as a scan asks
        folders = [name[:at] for at, letter in enumerate(name) if letter == "/"]
        entered = not any(found.ignored_entry(one, True) for one in folders)
        assert (entered and not found.ignored_entry(name)) == (name not in expected)


def test_our_own_rules_have_the_last_word(root: Path) -> None:
    tree(root)
    rules(root, {"": "*.txt\nz/"})
    found = rules(root, {"": "!b.txt\n*.log\n!z/"}, own=True)
    assert [name for name in FILES if found.ignored(name)] == ["x/y/c.log"]


def test_files_of_rules_that_cannot_be_read(root: Path) -> None:
    tree(root)
    (root / "x" / ".gitignore").write_bytes(b"# " + b"x" * 1_000_001)  # too large: ignores its folder
    (root / "elsewhere").write_text("*")
    (root / ".gitignore").symlink_to("elsewhere")  # git follows no link either
    os.mkfifo(root / ".localdflashignore")
    found = IgnoreRules(root)
    assert [name for name in FILES if found.ignored(name)] == ["x/a.py", "x/b.txt", "x/y/a.py", "x/y/c.log"]


@pytest.mark.parametrize(
    "line", ["*" * 40 + "x", "*a" * 40 + "x", "**/a/" * 20 + "x", "!" + "*a" * 40, "a*/" * 9 + "x"]
)
def test_patterns_cannot_take_exponential_time(root: Path, line: str) -> None:
    found, before = rules(root, {"": line}), time.monotonic()
    found.ignored("/".join(["a" * 200] * 10))
    found.ignored("/".join(["a"] * 60))
    assert time.monotonic() - before < 3
