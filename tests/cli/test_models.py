import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
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


def test_list_is_an_aligned_table_of_all_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    table, basis = out.split("\n\n")
    assert basis.startswith("SPEED: tokens a second at most, without drafts: ")
    header, *rows = table.splitlines()
    assert header.split() == [
        "PAIR",
        "MEMORY",
        "RUNS",
        "HERE",
        "SPEED",
        "DRAFTER",
        "FILES",
        "ON",
        "DISK",
        "DESCRIPTION",
    ]
    pairs = list(load_registry().pairs.values())
    for row, pair in zip(rows, pairs, strict=True):
        assert row.startswith(pair.id + " ")
        assert row[header.index("RUNS") :].startswith((*pair.backends, "too large") if pair.backends else "nothing yet")
        assert row[header.index("DESCRIPTION") :] == pair.description
        assert row[header.index("MEMORY") - 1] == row[header.index("FILES") - 1] == " "
    assert len(out.splitlines()[0]) < 100


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", "--json")
    assert (code, err) == (0, "")
    entries = json.loads(out)
    assert [entry["id"] for entry in entries] == list(load_registry().pairs)
    assert all(entry["target"]["file"].endswith(".gguf") for entry in entries)


def test_list_tells_whether_the_files_are_here(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY)
    assert _row(run(capsys, "list")[1], "mine") == [
        "mine",
        "not known",
        "nothing yet",
        "-",
        "none",
        "missing",
        "nothing",
        "A pair of mine",
    ]
    (user_file.parent / "t.gguf").write_bytes(bytes(1_500_000))
    assert _row(run(capsys, "list")[1], "mine")[5:7] == ["here", "1.5 MB"]


def _row(out: str, pair_id: str) -> list[str]:
    line = next(line for line in out.splitlines() if line.startswith(pair_id))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_show(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "qwen3-8b")
    assert (code, err) == (0, "")
    fields = _fields(out)
    models = home / "cache" / "models"
    assert fields["pair"] == ["qwen3-8b"]
    assert fields["context"] == ["40960 tokens"]
    assert fields["target"] == ["Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf (Q4_K_M)"]
    assert fields["drafter"][0].endswith("(dflash, safetensors, block 16, taps 1 9 17 25 33)")
    assert fields["sha256"] == ["not pinned: compared with what the hub names"] * 2
    assert fields["revision"] == ["main when it is fetched"] * 2
    assert fields["missing"] == [
        f"download Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf into {models}/Qwen/Qwen3-8B-GGUF",
        f"download z-lab/Qwen3-8B-DFlash-b16/model.safetensors into {models}/z-lab/Qwen3-8B-DFlash-b16",
        f"download z-lab/Qwen3-8B-DFlash-b16/config.json into {models}/z-lab/Qwen3-8B-DFlash-b16",
    ]


def _fields(out: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in out.splitlines():
        name, value = line.strip().split("  ", 1)
        fields.setdefault(name, []).append(value.strip())
    return fields


def test_show_says_what_is_not_known(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY)
    fields = _fields(run(capsys, "show", "mine")[1])
    assert fields["memory"] == fields["layers"] == fields["licence"] == ["not known"]
    assert fields["runs on"] == ["none yet"]
    assert fields["note"] == ["It waits."]
    assert fields["entry in"] == [str(user_file)]


def test_show_as_json(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY)
    shown: dict[str, Any] = json.loads(run(capsys, "show", "mine", "--json")[1])
    target = user_file.parent / "t.gguf"
    unknown = dict.fromkeys(("repository", "sha256", "revision", "size", "package", "adapted", "quantization"))
    assert shown["target"] == unknown | {"file": str(target)}
    assert shown["drafter"] is None
    assert shown["missing"] == [f"no file at {target}: put it there, or correct the entry"]
    (user_file.parent / "t.gguf").touch()
    assert json.loads(run(capsys, "show", "mine", "--json")[1])["missing"] == []


def test_show_takes_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "target.gguf"
    target.touch()
    fields = _fields(run(capsys, "show", str(target))[1])
    assert fields["pair"] == [str(target)]
    assert "weights" not in fields  # an empty file has none


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [(("Q8_0", "Q4_1"), "Q4_1, Q8_0: run as the file has them")],
)
def test_show_says_in_which_types_the_weights_run(
    kinds: tuple[str, str], shown: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    writer, path = gguf.GGUFWriter(tmp_path / "target.gguf", "llama"), tmp_path / "target.gguf"
    for name, rows, kind in (("token_embd", 8, kinds[0]), ("blk.0.ffn_up", 96, kinds[1])):
        quantized = gguf.GGMLQuantizationType[kind]
        blocks = gguf.quants.quantize(np.ones((rows, 64), np.float32), quantized)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=quantized)
    for name, shape in (("output_norm", (64,)), ("blk.0.ffn_gate_inp", (4, 64))):  # no large matrices
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert _fields(run(capsys, "show", str(path))[1])["weights"] == [shown]


def test_a_bad_user_file_is_named_with_its_line(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_file.write_text(ENTRY.replace("description", "descripton"))
    code, out, err = run(capsys, "list")
    assert (code, out) == (3, "")
    assert err == f"localdflash: {user_file}:5: pair.descripton: unknown key; did you mean 'description'?\n"


def test_a_path_cannot_drive_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCALDFLASH_HOME", str(tmp_path / "\x1b]0;owned\x07\n\x9b31m\u202e"))
    for arguments in (["show", "qwen3-8b"], ["list"], ["list", "--json"], ["show", "\x1b[2J/x.gguf"]):
        _, out, err = run(capsys, *arguments)
        assert all(char == "\n" or char.isprintable() for char in out + err)
        assert err.count("\n") <= 1
