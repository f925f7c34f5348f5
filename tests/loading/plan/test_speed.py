from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.loading.plan import expected_speed
from localdflash.models.weights.gguf import read_header
from tests.support.random_models import Shape, write

EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded" / "target.gguf"


def test_bytes_that_a_token_reads(tmp_path: Path) -> None:
    header = read_header(EMBEDDED)
    table = header.tensors["token_embd.weight"]  # tied: it is the head, and is read
    everything = sum(info.nbytes for info in header.tensors.values())
    assert expected_speed.bytes_per_token(header) == everything
    untied = replace(header, tensors={**header.tensors, "output.weight": replace(table, name="output.weight")})
    assert expected_speed.bytes_per_token(untied) == everything
    header = read_header(write(tmp_path / "moe.gguf", Shape("Q8_0", 64, 2, 2, 1, 32, 512, 32, experts=16, used=4)))
    experts = 2 * 3 * 16 * 64 * 32 * 34 // 32
    everything = sum(info.nbytes for info in header.tensors.values())
    assert expected_speed.bytes_per_token(header) == everything - experts + experts // 4
    assert expected_speed.tokens_per_second(936, 4_680_000_000) == pytest.approx(200)


def test_the_quantization_of_a_file(tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):  # by the type of most of its bytes
        path = write(tmp_path / f"{kind}.gguf", Shape(kind, 64, 1, 2, 1, 64, 512, 32))
        assert expected_speed.quantization(read_header(path)) == kind
    header = read_header(EMBEDDED)
    for code, name in ((0, "F32"), (15, "Q4_K_M")):
        named = replace(header, metadata={**header.metadata, "general.file_type": code})
        assert expected_speed.quantization(named) == name
