"""Pinned npm packages: their list, download, and the selection of training files."""

import hashlib
import io
import re
import subprocess
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localdflash.base.errors import TrainingError
from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train import adapter_mixture
from localdflash.lab.train.adapter_corpus import Archive, ScriptPackage, fetch, read_list, read_sources
from localdflash.lab.train.adapter_examples import FimExampleSampler
from localdflash.lab.train.adapter_mixture import SHARES, chat_examples, sample_packages
from localdflash.lab.train.stored_answers import LIKELY, LIKELY_COUNT, AnswerWriter
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.support.reports import RecordedReport

LIST = read_list()
PERMISSIVE = {"MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}
SCRIPT = "export function add(first, second) {\n\treturn first + second\n}\n\n" * 6


def package(folder: Path, files: dict[str, str]) -> ScriptPackage:
    """Return an archive as npm makes it, and its entry in the list."""
    found = ScriptPackage("@fake/one", "1.2.3", "MIT", "", folder="src")
    with tarfile.open(folder / found.file, "w:gz") as archive:
        for file, text in files.items():
            about = tarfile.TarInfo(f"package/{file}")
            about.size = len(text.encode())
            archive.addfile(about, io.BytesIO(text.encode()))
    sha256 = hashlib.sha256((folder / found.file).read_bytes()).hexdigest()
    return replace(found, sha256=sha256)


def test_the_list_is_pinned_and_each_package_once() -> None:
    assert len({entry.name for entry in LIST}) == len({entry.file for entry in LIST}) == len(LIST) >= 40
    assert 5 <= sum(entry.held_out for entry in LIST) <= len(LIST) // 5
    for entry in LIST:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256), entry.name
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry.version), entry.name
        assert entry.licence in PERMISSIVE, entry.name


def test_existing_archives_are_checked_and_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = package(tmp_path, {"src/a.js": SCRIPT})
    monkeypatch.setattr(subprocess, "run", None)
    assert fetch([entry], tmp_path) == [Archive(tmp_path / "fake-one-1.2.3.tgz", False, "src")]
    (tmp_path / entry.file).write_bytes(b"something else")
    with pytest.raises(TrainingError, match=r"is not the pinned @fake/one 1\.2\.3; delete it"):
        fetch([entry], tmp_path)


def test_only_hand_written_sources_below_the_folder_are_used(tmp_path: Path) -> None:
    expected = {"src/a.js": SCRIPT, "src/deep/b.tsx": SCRIPT}
    others = {
        **dict.fromkeys(("lib/a.js", "src/a.min.js", "src/a.d.ts", "src/a.test.ts", "src/__tests__/a.js"), SCRIPT),
        **dict.fromkeys(("src/dist/a.js", "src/vendor/a.js", "src/a.json", "src/a.py"), SCRIPT),
        "src/long.js": f"const a = '{'x' * 300}'\n" * 3,
        "src/exam.js": f"// HumanEval/12\n{SCRIPT}",
    }
    package(tmp_path, expected | others)
    found = read_sources(Archive(tmp_path / "fake-one-1.2.3.tgz", False, "src"))
    assert found == expected  # with their tabs


PYTHON = "def add(first, second):\n    return first + second\n\n\n" * 20
JAVASCRIPT = "export const add = (first, second) => {\n  return first + second\n}\n" * 20
PACKAGES = {"large": {"a.py": PYTHON * 4}, "small": {"b.py": PYTHON}, "script": {"c.js": JAVASCRIPT}}


def test_languages_have_their_shares_and_packages_the_root_of_their_sizes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_mixture, "read_sources", lambda archive: PACKAGES[archive.path.name])
    drawn = Counter[str]()
    monkeypatch.setattr(FimExampleSampler, "sample", lambda _, name, rng: drawn.update([name]))
    tokenizer = Tokenizer.load(root / "localdflash" / "models" / "embedded" / "target.gguf")
    packages = [Archive(Path(name), False) for name in PACKAGES]
    given = packages, Encoder(tokenizer), detect(tokenizer), 3000, 0, RecordedReport()
    list(sample_packages(*given, FimExampleSampler.sample))
    whole = SHARES["python"] + SHARES["javascript"]
    assert drawn["a.py"] == pytest.approx(3000 * SHARES["python"] / whole * 2 / 3, abs=1)
    assert drawn["b.py"] == pytest.approx(3000 * SHARES["python"] / whole / 3, abs=1)
    assert drawn["c.js"] == pytest.approx(3000 * SHARES["javascript"] / whole, abs=1)


def test_answers_of_one_split_are_mixed_in_up_to_a_number_of_ids(tmp_path: Path) -> None:
    about = {"sha256": "", "taps": [1], "hidden_size": 2}
    with AnswerWriter(tmp_path, about) as writer:
        for number in range(8):
            record = {"number": number, "kind": 0, "held_out": number % 2, "ended": 0}
            ids = np.full(800 if number == 0 else 10, number, np.uint32)
            writer.add(record, ids, np.zeros((len(ids) - 1, 2), np.float16), np.zeros((4, LIKELY_COUNT), LIKELY))
    found = list(chat_examples(tmp_path, False, 1000, 0))
    assert sorted(one.ids[0] for one in found) == [2, 4, 6]  # what is too long is left out
    assert all((len(one.ids), one.prompt, one.language, one.kind) == (10, 6, "chat", "chat") for one in found)
    assert len(list(chat_examples(tmp_path, True, 15, 0))) == 2
