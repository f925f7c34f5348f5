"""What gets into the index, what stays out, and that nobody waits for it."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.code.context import index
from localdflash.code.context.index import Workspace
from localdflash.code.context.listing import SKIPPED
from tests.code.context.conftest import PATIENCE, Opened, until

Opens = Callable[..., Opened]


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


def test_folders_of_others_are_skipped(open_workspace: Opens) -> None:
    skipped = [f"{at}{folder}/a.py" for folder in SKIPPED for at in ("", "x/")]
    opened = open_workspace({"a.py": ""} | dict.fromkeys(skipped, "def f(): pass"))
    assert opened.paths("f") == []


def test_files_that_nobody_wrote_are_left_out_without_a_word(open_workspace: Opens) -> None:
    opened = open_workspace(
        {
            "large.py": "def f(): pass\n" + "#" * 80 * 1 + "\n" * 1_000_000,
            "minified.py": "def f(): pass\n" + "x" * 6_000,
            "binary.py": "def f(): pass\0",
            "plain.txt": "def f(): pass",
            "kept.py": "def f(): pass",
        }
    )
    assert opened.paths("f") == ["kept.py"]
    assert opened.warnings == []


def test_too_many_files_are_told_once(open_workspace: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_FILES", 5)
    opened = open_workspace({f"{at}.py": "def f(): pass" for at in range(9)})
    assert len(opened.paths("f")) == 5
    assert len(opened.warnings) == 1
    assert ".localdflashignore" in opened.warnings[0]
    opened.write("new.py", "def f(): pass")
    assert opened.workspace.settled(PATIENCE)
    assert len(opened.warnings) == 1


def test_too_many_folders_are_told_once(open_workspace: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_FOLDERS", 3)
    opened = open_workspace({f"{at}/a.py": "def f(): pass" for at in range(9)})
    assert len(opened.paths("f")) == 2
    assert len(opened.warnings) == 1


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


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_root_that_is_no_folder(open_workspace: Opens, root: Path, name: str) -> None:
    (root / "file").write_text("def f(): pass")
    opened = open_workspace({}, [root / name])
    assert opened.paths("f") == []
    assert opened.workspace.allowed(root / "x.py")


def test_no_roots(root: Path) -> None:
    workspace = Workspace([], pytest.fail)
    workspace.start()
    assert workspace.settled(PATIENCE)
    assert workspace.allowed(root / "a.py")
    assert not workspace.allowed(root / ".env")
    workspace.close()


def test_who_waits_is_told_when_all_is_read(root: Path) -> None:
    (root / "a.py").write_text("def f(): pass")
    found: list[int] = []
    workspace = Workspace([root], pytest.fail)
    workspace.start(lambda: found.append(len(workspace.find("f", "python"))))
    assert workspace.settled(PATIENCE)
    workspace.close()
    assert found == [1]


def test_close_again_and_without_a_start(root: Path) -> None:
    workspace = Workspace([root], pytest.fail)
    workspace.close()
    workspace.close()
    started = Workspace([root], pytest.fail)
    started.start()
    started.close()
    started.close()
    assert started.find("f", "python") == []


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
    errors: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                assert len(opened.workspace.find("f", "python")) <= 20
                opened.workspace.allowed(opened.root / "1.py")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(5):
        for at in range(20):
            opened.write(f"{at}.py", f"def f(): pass\ndef turn{turn}(): pass")
            opened.workspace.refresh(opened.root / f"{at}.py")
        assert until(lambda turn=turn: len(opened.paths(f"turn{turn}")) == 20)  # type: ignore[misc]
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
