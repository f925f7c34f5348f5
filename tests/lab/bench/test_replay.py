from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.lab.bench import typing
from localdflash.lab.bench.passages import from_line
from localdflash.lab.bench.typing_replay import Manner

WHOLE = "import os\n\n\ndef size(path):\n    found = os.stat(path)\n    return found.st_size\n\n\nprint(size('.'))\n"
JOB = from_line("size.py", WHOLE, 5, 60)
MANNER = Manner("neovim", 60, 0, 20.0)


def test_any_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_held_out_files() -> None:
    jobs = typing.held_out(None, MANNER)
    assert len({job.name for job in jobs}) == typing.FILES == 20
    assert len(typing.held_out(3, MANNER)) == 3
