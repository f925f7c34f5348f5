"""The list of packages that npm has, their download and what of them is learned from."""

import hashlib
import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from localdflash.base.errors import TrainingError
from localdflash.lab.train.adapter_corpus import Archive, ScriptPackage, fetch, read_list, sources

LIST = read_list()
PERMISSIVE = {"MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}
SCRIPT = "export function add(first, second) {\n\treturn first + second\n}\n\n" * 6


def package(folder: Path, files: dict[str, str], name: str = "@fake/one") -> ScriptPackage:
    """An archive as npm makes it, and its entry in the list."""
    found = ScriptPackage(name, "1.2.3", "MIT", "src", "", False)
    with tarfile.open(folder / found.file, "w:gz") as archive:
        for file, text in files.items():
            about = tarfile.TarInfo(f"package/{file}")
            about.size = len(text.encode())
            archive.addfile(about, io.BytesIO(text.encode()))
    sha256 = hashlib.sha256((folder / found.file).read_bytes()).hexdigest()
    return ScriptPackage(name, "1.2.3", "MIT", "src", sha256, False)


def test_the_list_is_pinned_and_each_package_once() -> None:
    assert len({entry.name for entry in LIST}) == len({entry.file for entry in LIST}) == len(LIST) >= 40
    assert 5 <= sum(entry.held_out for entry in LIST) <= len(LIST) // 5
    for entry in LIST:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256), entry.name
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry.version), entry.name
        assert entry.licence in PERMISSIVE, entry.name


def test_archives_that_are_there_are_checked_and_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = package(tmp_path, {"src/a.js": SCRIPT})
    monkeypatch.setattr(subprocess, "run", None)
    assert fetch([entry], tmp_path) == [Archive(tmp_path / "fake-one-1.2.3.tgz", False, "src")]
    (tmp_path / entry.file).write_bytes(b"something else")
    with pytest.raises(TrainingError, match=r"is not @fake/one 1\.2\.3 as pinned: delete it"):
        fetch([entry], tmp_path)


def test_hand_written_sources_below_the_folder_count(tmp_path: Path) -> None:
    wanted = {"src/a.js": SCRIPT, "src/deep/b.tsx": SCRIPT}
    others = {
        **dict.fromkeys(("lib/a.js", "src/a.min.js", "src/a.d.ts", "src/a.test.ts", "src/__tests__/a.js"), SCRIPT),
        **dict.fromkeys(("src/dist/a.js", "src/vendor/a.js", "src/a.json", "src/a.py"), SCRIPT),
        "src/long.js": f"const a = '{'x' * 300}'\n" * 3,
        "src/exam.js": f"// HumanEval/12\n{SCRIPT}",
    }
    package(tmp_path, wanted | others)
    found = sources(Archive(tmp_path / "fake-one-1.2.3.tgz", False, "src"))
    assert found == wanted  # with their tabs
