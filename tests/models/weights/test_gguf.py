"""Valid GGUF files against gguf-py, the reference reader; paths that are no files; tensors end to end."""

import ctypes
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.base.errors import ModelError
from localdflash.models.weights import gguf as module
from localdflash.models.weights.ggml_types import BY_CODE
from localdflash.models.weights.gguf import cached_headers, load_blocks, load_tensor, read_header
from tests.support.gguf_files import random_blocks
from tests.support.gguf_writing import finish


def write_tensors(path: Path, alignment: int | None = None, **tensors: tuple[NDArray[np.uint8], str]) -> Path:
    writer = gguf.GGUFWriter(path, "qwen3")
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, (rows, kind) in tensors.items():
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(writer)
    return path


def test_metadata_and_tensors_equal_the_reference_reader(small_gguf: Path) -> None:
    header = read_header(small_gguf)
    reference = gguf.GGUFReader(small_gguf)
    expected = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert dict(header.metadata) == expected
    assert {key: type(value) for key, value in header.metadata.items()} == {k: type(v) for k, v in expected.items()}
    assert header.version == 3
    assert header.data_offset == reference.data_offset
    assert list(header.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert (info.ggml_type, info.offset, info.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)


def test_kept_headers_are_read_once_unless_their_file_changes(
    small_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, linked = tmp_path / "model.gguf", tmp_path / "link.gguf"
    path.write_bytes(small_gguf.read_bytes())
    linked.symlink_to(path)
    with cached_headers():
        first = read_header(path)
        with monkeypatch.context() as patched:
            patched.setattr(module, "parse_header", lambda *_: pytest.fail("it was read again"))
            again = read_header(linked)
        assert (again.metadata, again.path) == (first.metadata, linked)
        path.write_bytes(b"GGUF" + bytes(100))
        with pytest.raises(ModelError, match="version 0"):
            read_header(linked)
        path.write_bytes(small_gguf.read_bytes())
        first = read_header(path)
    assert read_header(path).metadata is not first.metadata


def test_table_of_types_equals_ggml(ggml: ctypes.CDLL) -> None:
    stored = {}
    for code in range(200):
        name = ggml.ggml_type_name(code) if code < 43 else None
        if name and ggml.ggml_type_size(code):
            stored[code] = (name.decode().lower(), ggml.ggml_blck_size(code), ggml.ggml_type_size(code))
    assert {code: (kind.name.lower(), kind.block_weights, kind.block_bytes) for code, kind in BY_CODE.items()} == stored


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, "not a regular file") for name in (".", "fifo", "link", "/dev/zero", "/dev/null")),
        *((name, "cannot open") for name in ("missing.gguf", "a" * 300, "nul\0.gguf", "loop")),
    ],
)
def test_non_files_are_refused_and_closed(tmp_path: Path, name: str, message: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for link, to in (("link", "fifo"), ("loop", "loop")):
        (tmp_path / link).symlink_to(tmp_path / to)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(ModelError, match=message) as error:
            read_header(tmp_path / name)
        assert "\0" not in str(error.value)
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("kind", ["F32", "Q6_K"])
def test_tensors_equal_the_reference(tmp_path: Path, kind: str) -> None:
    rows = random_blocks(np.random.default_rng(7), kind, (3, 1024))
    header = read_header(write_tensors(tmp_path / "t.gguf", first=(rows, kind), second=(rows[1:], kind)))
    for tensor in gguf.GGUFReader(tmp_path / "t.gguf").tensors:
        expected = gguf.quants.dequantize(tensor.data, gguf.GGMLQuantizationType[kind])
        loaded = load_tensor(header, tensor.name)
        assert loaded.dtype == torch.float32
        np.testing.assert_array_equal(loaded.numpy(), expected)


def test_writing_to_a_tensor_leaves_the_file_alone(small_gguf: Path) -> None:
    before = small_gguf.read_bytes()
    header = read_header(small_gguf)
    load_tensor(header, "norm.weight").zero_()
    load_blocks(header, "norm.weight").zero_()
    assert small_gguf.read_bytes() == before
    assert load_tensor(header, "norm.weight").tolist() == [0, 1, 2, 3, 4]


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "iq.gguf", head=(np.zeros((1, 74), np.uint8), "IQ2_XS"))
    with pytest.raises(ModelError, match=r"iq\.gguf: tensor head: .*IQ2_XS.*llama\.cpp"):
        load_tensor(read_header(path), "head")


def test_file_truncated_after_the_check(small_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(small_gguf.read_bytes())
    header = read_header(path)
    os.truncate(path, header.tensors["cube"].offset)
    with pytest.raises(ModelError, match="became shorter"):
        load_tensor(header, "cube")
    path.unlink()
    with pytest.raises(ModelError, match="cannot open"):
        load_tensor(header, "cube")
