"""Two files of one model in turn, small: what the result says of them."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.lab.scripts import cpu_files
from tests.backends.cpu.conftest import DENSE, needs_library
from tests.support.random_models import Shape, write

pytestmark = needs_library


@pytest.mark.nightly
def test_files_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("Q8_0", DENSE.hidden_size, 1, 4, 2, 256, 512)
    files = [write(tmp_path / f"{kind}.gguf", replace(shape, quantization=kind)) for kind in ("Q8_0", "Q4_0")]
    monkeypatch.setattr(cpu_files, "DECODED", 2)
    monkeypatch.setattr(cpu_files, "PAUSE", 0.0)
    result = tmp_path / "result.json"
    arguments = [*map(str, files), "--threads", "1", "--seconds", "0.01", "--json", str(result)]
    monkeypatch.setattr(sys, "argv", ["cpu_files", *arguments])
    cpu_files.main()
    found = json.loads(result.read_text())
    assert found["command"] == "python -P lab/scripts/cpu_files.py Q8_0.gguf Q4_0.gguf --threads 1 --seconds 0.01"
    assert list(found["files"]) == ["Q8_0.gguf", "Q4_0.gguf"]
    for measured in found["files"].values():
        assert measured["rounds"] >= 1
        assert set(measured["verify_ms"]) == {"1", "2", "4", "8", "16"}
        assert measured["v"]["1"] == 1
        assert measured["plain_tokens_s"] > 0
        assert measured["llama_cpp_plain_tokens_s"] > 0


def test_medians() -> None:
    times = {f"verify of {rows}": [float(rows), 9.0 * rows, 2.0 * rows] for rows in cpu_files.WIDTHS}
    times |= {"plain": [5.0, 4.0, 100.0], "llama.cpp plain": [10.0, 10.0, 1.0]}
    (reported,) = cpu_files.report({"a.gguf": times}).values()
    assert reported["verify_ms"][4] == 8.0
    assert reported["v"] == {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0}
    assert (reported["plain_tokens_s"], reported["llama_cpp_plain_tokens_s"]) == (200.0, 100.0)
