"""What the index holds, what stays out, and that lookups never wait for it."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localdflash.code.context import index
from localdflash.code.context.index import Workspace
from localdflash.code.context.listing import SKIPPED
from tests.code.context.conftest import PATIENCE, Opens, until


def test_definitions_by_name_in_order(open_workspace: Opens) -> None:
    opened = open_workspace(
        {"b.py": "\ndef f(x):\n    'Adds.'", "a/c.py": "class f: pass\ndef f(): pass", "x.go": "package x\nfunc f() {}"}
    )
    found = opened.workspace.find("f", "python")
    assert [(one.path, one.line, one.kind) for one in found] == [
        ("a/c.py", 0, "class"),
        ("a/c.py", 1, "function"),
        ("b.py", 1, "function"),
    ]
    assert found[2].text == "def f(x):\n    'Adds.'"
    assert [one.path for one in opened.workspace.find("f", "go")] == ["x.go"]
    assert opened.workspace.find("g", "python") == []
    assert opened.workspace.find("f", "") == []
    assert opened.warnings == []


def test_languages_of_a_family_see_each_other(open_workspace: Opens) -> None:
    opened = open_workspace({"a.ts": "export function f() {}", "b.h": "int g(void);"})
    assert [one.path for one in opened.workspace.find("f", "tsx")] == ["a.ts"]
    assert [one.path for one in opened.workspace.find("g", "cpp")] == ["b.h"]


def test_dependencies_and_generated_files_are_skipped_silently(open_workspace: Opens) -> None:
    text = "def f(): pass\n"
    generated = {
        "large.py": text + "\n" * 1_000_000,
        "minified.py": text + "x" * 6_000,
        "binary.py": text + "\0",
        "plain.txt": text,
        "kept.py": text,
    }
    skipped = [f"{at}{folder}/a.py" for folder in SKIPPED for at in ("", "x/")]
    opened = open_workspace(dict.fromkeys(skipped, text) | generated)
    assert opened.paths("f") == ["kept.py"]
    assert opened.warnings == []


@pytest.mark.parametrize(("limit", "name", "most"), [("MAX_FILES", "{}.py", 5), ("MAX_FOLDERS", "{}/a.py", 3)])
def test_too_many_files_or_folders_are_warned_of_once(
    open_workspace: Opens, monkeypatch: pytest.MonkeyPatch, limit: str, name: str, most: int
) -> None:
    monkeypatch.setattr(index, limit, most)
    opened = open_workspace({name.format(at): "def f(): pass" for at in range(9)})
    assert len(opened.paths("f")) == (most if limit == "MAX_FILES" else most - 1)
    opened.write("new.py", "def f(): pass")
    assert opened.workspace.settled(PATIENCE)
    (warning,) = opened.warnings
    assert ".localdflashignore" in warning


def test_a_name_of_very_many_files_is_bounded(open_workspace: Opens) -> None:
    opened = open_workspace({f"{at:03}.py": "def f(): pass" for at in range(100)})
    assert opened.paths("f") == [f"{at:03}.py" for at in range(64)]


def test_several_roots_and_one_within_another(open_workspace: Opens, root: Path) -> None:
    (root / "inner").mkdir()
    other = root.parent / "other"
    other.mkdir()
    (other / "b.py").write_text("def f(): pass")
    opened = open_workspace({"inner/a.py": "def f(): pass"}, [root / "inner", other, root])
    assert sorted(opened.paths("f")) == ["b.py", "inner/a.py"]


def test_a_root_that_is_a_link_is_followed(open_workspace: Opens, root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    opened = open_workspace({"a.py": "def f(): pass", ".gitignore": "b.py", "b.py": ""}, [link])
    assert opened.paths("f") == ["a.py"]
    assert opened.workspace.allowed(link / "a.py")
    assert opened.workspace.allowed(root / "a.py")
    assert not opened.workspace.allowed(link / "b.py")
    assert not opened.workspace.allowed(root / "b.py")


def test_roots_that_are_no_folders(open_workspace: Opens, root: Path) -> None:
    (root / "file").write_text("def f(): pass")
    opened = open_workspace({}, [root / "missing", root / "file"])
    assert opened.paths("f") == []
    assert opened.workspace.allowed(root / "x.py")


def test_no_roots_and_closing_twice(root: Path) -> None:
    workspace = Workspace([], pytest.fail)
    workspace.start()
    assert workspace.settled(PATIENCE)
    assert workspace.allowed(root / "a.py")
    assert not workspace.allowed(root / ".env")
    for closed in (workspace, Workspace([root], pytest.fail)):  # also one that was never started
        closed.close()
        closed.close()


def test_a_callback_runs_once_all_is_read(root: Path) -> None:
    (root / "a.py").write_text("def f(): pass")
    found: list[int] = []
    workspace = Workspace([root], pytest.fail)
    workspace.start(lambda: found.append(len(workspace.find("f", "python"))))
    assert workspace.settled(PATIENCE)
    workspace.close()
    assert found == [1]


def test_no_thread_is_left(open_workspace: Opens) -> None:
    before = set(threading.enumerate())
    opened = open_workspace({"a/b/c.py": "def f(): pass"})
    opened.workspace.close()
    assert until(lambda: set(threading.enumerate()) <= before)
    opened.workspace.refresh(opened.root / "a/b/c.py")
    assert opened.paths("f") == ["a/b/c.py"]


def test_modules_are_located_without_the_disk(open_workspace: Opens) -> None:
    opened = open_workspace(
        dict.fromkeys(("src/pkg/__init__.py", "src/pkg/a.py", "src/pkg/sub/b.py", "lib/x.py", "go/util/u.go"), "")
    )
    root = opened.workspace.real(opened.root)

    def located(near: str, module: str) -> list[str]:
        return [path.removeprefix(root + "/") for path in opened.workspace.locate(f"{root}/{near}", module)]

    assert located("src/pkg/sub/b.py", "pkg/a.py") == ["src/pkg/a.py"]
    assert located("main.py", "pkg/a.py") == ["src/pkg/a.py"]
    assert located("src/pkg/sub/b.py", "./../a.py") == ["src/pkg/a.py"]
    assert located("src/pkg/a.py", "x.py") == ["lib/x.py"]
    assert located("go/main.go", "util/") == ["go/util/u.go"]
    assert located("main.py", "missing.py") == []
    assert located("main.py", "./../../../etc/passwd") == []
    assert opened.workspace.locate("/elsewhere/a.py", "pkg/a.py") == ()
    opened.write("missing.py", "")
    assert until(lambda: located("main.py", "missing.py") == ["missing.py"])


@pytest.mark.nightly
def test_a_hundred_thousand_files_and_a_loop_that_goes_on(root: Path) -> None:
    for folder in range(100):
        (root / f"{folder}").mkdir()
        (root / f"{folder}" / "a.py").write_text("def f(): pass\n" * 50)
        (root / f"{folder}" / "0.dat").touch()
        for number in range(1, 1000):
            os.link(root / f"{folder}" / "0.dat", root / f"{folder}" / f"{number}.dat")  # quicker than a new file
    workspace = Workspace([root], pytest.fail)

    async def beat() -> list[float]:
        workspace.start()
        late = []
        while not workspace.settled(0):
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - before)
        return late

    late = sorted(asyncio.run(beat()))
    assert len(workspace.find("f", "python")) == 64
    assert late[len(late) * 9 // 10] < 0.05
    workspace.close()
    closing = Workspace([root], pytest.fail)
    closing.start()
    before = time.monotonic()
    closing.close()
    assert time.monotonic() - before < 0.5


@pytest.mark.nightly
def test_lookups_from_many_threads_while_files_change(open_workspace: Opens) -> None:
    opened = open_workspace({f"{at}.py": "def f(): pass" for at in range(20)})
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            assert len(opened.workspace.find("f", "python")) <= 20
            opened.workspace.allowed(opened.root / "1.py")

    with ThreadPoolExecutor(4) as threads:
        looking = [threads.submit(look) for _ in range(4)]
        for turn in range(5):
            for at in range(20):
                opened.write(f"{at}.py", f"def f(): pass\ndef turn{turn}(): pass")
                opened.workspace.refresh(opened.root / f"{at}.py")
            assert until(lambda turn=turn: len(opened.paths(f"turn{turn}")) == 20)  # type: ignore[misc]
        done.set()
        for one in looking:
            one.result()
