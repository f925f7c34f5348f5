import re
from pathlib import Path

import pytest

from localdflash.base.errors import TrainingError
from localdflash.lab.train.corpus import CorpusPackage, fetch, python_files, read_list
from tests.support.wheels import make_wheel, pip_settings, set_pip

LIST = read_list()
PERMISSIVE = {"MIT", "BSD", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "LicenseRef-Repoze-BSD-derived"}
CODE = "def add(first, second):\n    return first + second\n\n\n"
SOURCE = CODE * 8
OTHERS = (
    *("fake/_vendor/x.py", "fake/vendored/x.py", "fake/extern/x.py", "fake/_externals/x.py"),
    *("fake/third_party/x.py", "tests/x.py", "fake/test/x.py", "fake/testing/x.py", "fake/locale/x.py"),
    *("fake/migrations/x.py", "fake/test_x.py", "fake/x_test.py", "fake/conftest.py", "fake/_version.py"),
    *("fake/node_modules/x.py", "fake/x.pyi", "fake/x.txt", "fake/x.pyc"),
)
ODD: tuple[str | bytes, ...] = (
    "x = 1\n",  # too short
    CODE * 2000,  # too long
    SOURCE + f"TABLE = '{'a' * 300}'\n",
    "x = 'a long line of data, again and again and again and so on'\n" * 20,
    SOURCE + "# Это не английский язык\n" * 5,
    SOURCE.encode() + b"\xff\xfe",
)


def test_the_list_is_pinned_and_each_package_once() -> None:
    names = [re.sub(r"[-_.]+", "-", entry.name).lower() for entry in LIST]
    assert len(names) == len(set(names)) >= 100
    assert len({entry.sha256 for entry in LIST}) == len(LIST)
    for entry in LIST:
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256), entry.name
        assert re.fullmatch(r"\d[\w.]*", entry.version), entry.name
        assert set(re.split(r" (?:OR|AND) ", entry.licence)) <= PERMISSIVE, entry.name
    assert 5 <= sum(entry.held_out for entry in LIST) <= len(LIST) // 5


def test_vendored_code_tests_and_generated_files_are_left_out(tmp_path: Path) -> None:
    kept = "fake/latest/vendors_of_things.py"
    files: dict[str, str | bytes] = {name: f"# {name}\n{SOURCE}" for name in OTHERS}
    files |= {f"fake/odd{number}.py": text for number, text in enumerate(ODD)}
    assert list(python_files(make_wheel(tmp_path, {**files, kept: SOURCE}))) == [SOURCE]


@pytest.mark.system
def test_a_file_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index := tmp_path / "index").mkdir()
    make_wheel(index, {"fake/a.py": SOURCE}, "fake")
    set_pip(monkeypatch, pip_settings(index))
    with pytest.raises(TrainingError, match=r"^corpus: pip download into .*wheels failed: [^\n]+$"):
        fetch([CorpusPackage("fake", "1.0", "MIT", "0" * 64, False)], tmp_path / "wheels")
    assert list((tmp_path / "wheels").glob("*.whl")) == []
