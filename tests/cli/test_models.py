"""`models list` and `models show`."""

import json
import re
from pathlib import Path

import pytest

from localdflash.cli import main
from localdflash.models.registry.registry import load_registry

ENTRY = """\
schema = 1

[[pair]]
id = "mine"
description = "A pair of mine"
backends = []
notes = ["It waits."]

[pair.target]
path = "t.gguf"
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["models", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def user_file(home: Path) -> Path:
    file = home / "config" / "models.toml"
    file.parent.mkdir(parents=True)
    return file


def test_list_is_an_aligned_table_of_all_pairs(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY)
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    table, basis, *_ = out.split("\n\n")  # on a busy machine the bandwidth is measured again for each pair
    assert basis.startswith("SPEED: ")
    header, *rows = table.splitlines()
    assert " ".join(header.split()) == "PAIR MEMORY RUNS HERE SPEED DRAFTER FILES ON DISK DESCRIPTION"
    pairs = list(load_registry().pairs.values())
    for row, pair in zip(rows, pairs, strict=True):
        assert row.startswith(pair.id + " ")
        assert row[header.index("RUNS") :].startswith((*pair.backends, "too large") if pair.backends else "nothing yet")
        assert row[header.index("DESCRIPTION") :] == pair.description
        assert row[header.index("MEMORY") - 1] == row[header.index("FILES") - 1] == " "
    assert len(header) < 100
    (mine,) = [" ".join(row.split()) for row in rows if row.startswith("mine ")]
    assert mine == "mine not known nothing yet - none missing nothing A pair of mine"
    (user_file.parent / "t.gguf").write_bytes(bytes(1_500_000))
    assert re.search(r"^mine .* here +1\.5 MB", run(capsys, "list")[1], re.MULTILINE)
    entries = json.loads(run(capsys, "list", "--json")[1])
    assert [entry["id"] for entry in entries] == list(load_registry().pairs)
    assert all(entry["target"]["file"].endswith(".gguf") for entry in entries)


def test_models_show(user_file: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY)
    code, out, err = run(capsys, "show", "qwen3-8b")
    assert (code, err) == (0, "")
    fields = _fields(out)
    models = home / "cache" / "models"
    assert fields["pair"] == ["qwen3-8b"]
    assert fields["context"] == ["40960 tokens"]
    assert fields["target"] == ["Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf (Q4_K_M)"]
    assert fields["drafter"][0].endswith("(dflash, safetensors, block 16, taps 1 9 17 25 33)")
    assert [len(fields["sha256"]), len(fields["revision"]), len(fields["missing"])] == [2, 2, 3]
    for line, name in zip(fields["missing"], ("Qwen3-8B-Q4_K_M.gguf", "model.safetensors", "config.json"), strict=True):
        assert name in line
        assert str(models) in line
    fields = _fields(run(capsys, "show", "mine")[1])
    assert fields["memory"] == fields["layers"] == fields["licence"] == ["not known"]
    assert (fields["runs on"], fields["note"], fields["entry in"]) == (["none yet"], ["It waits."], [str(user_file)])
    empty = user_file.parent / "empty.gguf"
    empty.touch()
    fields = _fields(run(capsys, "show", str(empty))[1])
    assert (fields["pair"], "weights" in fields) == ([str(empty)], False)


def _fields(out: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in out.splitlines():
        name, value = line.strip().split("  ", 1)
        fields.setdefault(name, []).append(value.strip())
    return fields


def test_paths_are_escaped_in_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "\x1b]0;owned\x07\n\x9b31m\u202e"))
    for arguments in (["show", "qwen3-8b"], ["list"], ["list", "--json"], ["show", "\x1b[2J/x.gguf"]):
        _, out, err = run(capsys, *arguments)
        assert all(char == "\n" or char.isprintable() for char in out + err)
        assert err.count("\n") <= 1


def test_recommend_names_a_pair_for_each_role(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "recommend")
    assert code == 0
    assert "chat: " in out
    assert "completion: " in out
    assert {one["role"] for one in json.loads(run(capsys, "recommend", "--json")[1])} == {"chat", "completion"}
