from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.loading.plan import expected_speed
from localdflash.models.weights.gguf import read_header
from tests.support.random_models import Shape, write

EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded" / "target.gguf"


def test_a_dense_model_reads_all_its_weights() -> None:
    header = read_header(EMBEDDED)
    assert "output.weight" not in header.tensors  # tied: the table is the head, and is read
    assert expected_speed.bytes_per_token(header) == sum(info.nbytes for info in header.tensors.values())


def test_a_table_beside_a_head_is_only_looked_up() -> None:
    header = read_header(EMBEDDED)
    table = header.tensors["token_embd.weight"]
    untied = replace(header, tensors={**header.tensors, "output.weight": replace(table, name="output.weight")})
    assert expected_speed.bytes_per_token(untied) == expected_speed.bytes_per_token(header)


def test_of_experts_only_the_active_ones_are_read(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "moe.gguf", Shape("Q8_0", 64, 2, 2, 1, 32, 512, 32, experts=16, used=4)))
    experts = 2 * 3 * 16 * 64 * 32 * 34 // 32
    everything = sum(info.nbytes for info in header.tensors.values())
    assert expected_speed.bytes_per_token(header) == everything - experts + experts // 4


def test_matrices_and_what_no_quantization_changes() -> None:
    header = read_header(EMBEDDED)
    weights, others = expected_speed.matrices(header)
    assert weights * 34 // 32 + others == sum(info.nbytes for info in header.tensors.values())
    assert others == sum(info.nbytes for info in header.tensors.values() if len(info.shape) == 1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Q8_0", "Q8_0"),
        ("Q4_0", "Q4_0"),
    ],
)
def test_a_file_that_does_not_say_is_what_most_of_it_is(kind: str, name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", Shape(kind, 64, 1, 2, 1, 64, 512, 32))
    assert expected_speed.quantization(read_header(path)) == name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "F32"),
        (15, "Q4_K_M"),
    ],
)
def test_a_file_that_says_is_believed(code: int, name: str) -> None:
    header = read_header(EMBEDDED)
    assert expected_speed.quantization(replace(header, metadata={**header.metadata, "general.file_type": code})) == name


def test_tokens_a_second_are_bandwidth_over_bytes() -> None:
    assert expected_speed.tokens_per_second(936, 4_680_000_000) == pytest.approx(200)
    assert expected_speed.drafted_tokens_per_second(936, 4_000_000_000, 680_000_000, 3.0) == pytest.approx(600)
