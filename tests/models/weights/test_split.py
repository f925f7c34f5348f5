"""Split models: read as one by the path of the first part, and refused if a part does not match."""

import shutil
from pathlib import Path

import pytest
import torch

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import load_blocks, read_header
from tests.support.converted_models import case_of
from tests.support.split_files import split_file


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model in one file."""
    return case_of("llama").write(tmp_path_factory.mktemp("whole") / "whole.gguf")


@pytest.mark.parametrize("empty_first", [False, True])
def test_the_parts_are_read_as_one_model(tmp_path: Path, whole_file: Path, empty_first: bool) -> None:
    first, unsplit = split_file(whole_file, tmp_path, "m", 3, empty_first), read_header(whole_file)
    header = read_header(first)
    assert {info.part for info in header.tensors.values()} == ({1, 2} if empty_first else {0, 1, 2})
    assert [(info.name, info.shape, info.ggml_type, info.nbytes) for info in header.tensors.values()] == [
        (info.name, info.shape, info.ggml_type, info.nbytes) for info in unsplit.tensors.values()
    ]
    assert {key: header.metadata[key] for key in unsplit.metadata} == dict(unsplit.metadata)
    for name in unsplit.tensors:
        assert torch.equal(load_blocks(header, name), load_blocks(unsplit, name))


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_part_names_the_first(tmp_path: Path, whole_file: Path) -> None:
    split_file(whole_file, tmp_path, "m", 2)
    assert "part 2 of 2; give the first one, m-00001-of-00002.gguf" in refused(tmp_path / "m-00002-of-00002.gguf")


def test_missing_parts_are_named(tmp_path: Path, whole_file: Path) -> None:
    first = split_file(whole_file, tmp_path, "m", 4)
    for number in (2, 4):
        (tmp_path / f"m-0000{number}-of-00004.gguf").unlink()
    assert "of its 4 parts (m-00002-of-00004.gguf, m-00004-of-00004.gguf); download them" in refused(first)


def test_parts_in_another_order_are_refused(tmp_path: Path, whole_file: Path) -> None:
    first = split_file(whole_file, tmp_path, "m", 3)
    second, third = (tmp_path / f"m-0000{number}-of-00003.gguf" for number in (2, 3))
    shutil.move(second, tmp_path / "x")
    shutil.move(third, second)
    shutil.move(tmp_path / "x", third)
    assert "its header is not that of part 2 of 3" in refused(first)


def test_a_part_of_another_model_is_refused(tmp_path: Path, whole_file: Path) -> None:
    first = split_file(whole_file, tmp_path, "m", 2)
    (tmp_path / "n").mkdir()
    other = split_file(whole_file, tmp_path / "n", "m", 2, empty_first=True)
    shutil.copy(other.with_name("m-00002-of-00002.gguf"), first.with_name("m-00002-of-00002.gguf"))
    assert " is in an earlier part, too" in refused(first)
    shutil.copy(other, first)
    split_file(whole_file, tmp_path / "n", "m", 2)
    shutil.copy(other.with_name("m-00002-of-00002.gguf"), first.with_name("m-00002-of-00002.gguf"))
    assert " tensors instead of " in refused(first)


def test_a_name_without_parts_and_parts_without_a_name(tmp_path: Path, whole_file: Path) -> None:
    first = split_file(whole_file, tmp_path, "m", 2)
    renamed = shutil.copy(first, tmp_path / "m.gguf")
    assert "a part of a model in 2 files; rename it" in refused(Path(renamed))
    shutil.copy(whole_file, first)
    assert "its header is not that of part 1 of 2" in refused(first)
    single = shutil.copy(whole_file, tmp_path / "m-00001-of-00001.gguf")
    assert read_header(Path(single)).tensors == read_header(whole_file).tensors


@pytest.mark.parametrize(("number", "count"), [(1, 513), (1, 99999), (4, 3), (0, 3)])
def test_invalid_part_numbers_are_refused(number: int, count: int, tmp_path: Path, whole_file: Path) -> None:
    path = tmp_path / f"m-{number:05}-of-{count:05}.gguf"
    path.write_bytes(whole_file.read_bytes())
    assert f"part {number} of {count}" in refused(path)


def test_headers_of_parts_are_bounded_together(
    tmp_path: Path, whole_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = split_file(whole_file, tmp_path, "m", 2)
    monkeypatch.setattr("localdflash.models.weights.gguf.MAX_HEADER_BYTES", read_header(first).data_offset)
    assert "headers of its parts are larger than" in refused(first)
