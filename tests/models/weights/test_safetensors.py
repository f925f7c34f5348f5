"""safetensors headers: valid files against the library, broken ones one by one, damaged ones at random."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from localdflash.base.errors import ModelError
from localdflash.models.weights.safetensors import SafetensorsHeader, load, read_header
from tests.support.split_files import shard

TENSORS = {
    "fc.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "norm.weight": torch.arange(5, dtype=torch.float32),
    "ids": torch.arange(3),
    "flags": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "half": torch.ones(1, 2, 3, dtype=torch.float16),
    "eight": torch.ones(4).to(torch.float8_e4m3fn),
}


def file(header: object, data: int = 16, length: int | None = None) -> bytes:
    """Return a file with `data` zero bytes; the header is an object, or the text itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


VALID: dict[str, bytes] = {
    "metadata": file({"__metadata__": {"format": "pt"}, "a": entry()}),
    "two, the last first": file({"b": entry(shape=[2], offsets=[8, 16]), "a": entry(shape=[2], offsets=[0, 8])}),
    "scalar": file({"a": entry(shape=[], offsets=[0, 4])}, data=4),
    "empty": file({"a": entry(shape=[0, 3], offsets=[0, 0]), "b": entry()}),
}

DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
NESTED_SHAPE = b'{"a":{"dtype":"F32","shape":' + b"[" * 800 + b"]" * 800 + b',"data_offsets":[0,16]}}'
TWICE = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
LONG_NUMBER = b'{"a":{"dtype":"F32","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,16]}}'

MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "its header needs 0 bytes, the file has 0"),
    "length beyond the file": (file({}, data=0, length=3), "its header needs 3 bytes, the file has 10"),
    "length 0": (file({}, length=0), "its header is not a JSON object"),
    "gguf": (b"GGUF" + bytes(60), "its header needs 1179993927 bytes"),
    "space first": (file(b" {}", data=0), "its header is not a JSON object"),
    "not JSON": (file(b"{a:1}"), "its header cannot be read"),
    "100000 levels": (file(DEEP), "its header cannot be read"),
    "number of 10000 digits": (file(LONG_NUMBER), "its header cannot be read"),
    "NaN": (file(b'{"a":NaN}'), "NaN is not JSON"),
    "tensor twice": (file(TWICE), "duplicate name"),
    "metadata a list": (file({"__metadata__": []}), "__metadata__ is not a map of strings"),
    "entry a number": (file({"a": 1}), "tensor a has other fields"),
    "no offsets": (file({"a": {"dtype": "F32", "shape": [4]}}), "tensor a has other fields"),
    "name with line break": (file({"a\nb": entry()}), "cannot be the name of a tensor"),
    "empty name": (file({"": entry()}), "cannot be the name of a tensor"),
    "unknown dtype": (file({"a": entry("F31")}), "tensor a has the unknown dtype 'F31'"),
    "dtype with escape": (file({"a": entry("\x1b[2J")}), r"unknown dtype '\\x1b\[2J'"),
    "dtype a number": (file({"a": entry(32)}), "a dtype that is not a string"),
    "shape a number": (file({"a": entry(shape=4)}), "a shape that is not"),
    "shape of infinity": (file(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}'), "a shape that is not"),
    "shape beyond 63 bits": (file({"a": entry(shape=[2**63, 0])}), "a shape that is not"),
    "nine axes": (file({"a": entry(shape=[1] * 8 + [4])}), "a shape that is not"),
    "shape 800 levels deep": (file(NESTED_SHAPE), "a shape that is not"),
    "negative offset": (file({"a": entry(offsets=[-16, 0])}), "data_offsets that are not two sizes"),
    "one byte too many": (file({"a": entry(offsets=[0, 17])}), "tensor a needs 16 bytes and has 17"),
    "product that wraps to 4": (file({"a": entry(shape=[2**62, 4, 1]), "b": entry()}), "needs 73786976294838206464"),
    "data missing": (file({"a": entry()}, data=15), "its tensors end at byte"),
    "data left over": (file({"a": entry()}, data=17), "its tensors end at byte"),
    "gap at the start": (file({"a": entry(offsets=[4, 20])}, data=20), "tensor a starts at byte"),
    "gap between": (file({"a": entry(), "b": entry(offsets=[20, 36])}, data=36), "tensor b starts at byte"),
    "overlap": (file({"a": entry(), "b": entry(offsets=[12, 28])}, data=28), "tensor b starts at byte"),
    "offsets beyond the file": (file({"a": entry(offsets=[2**62, 2**62 + 16])}), "tensor a starts at byte"),
}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "scratch.safetensors"
    path.touch()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safetensors") / "small.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def check(path: Path, content: bytes) -> SafetensorsHeader | None:
    """Return the header, or None after a ModelError of one printable line. The library accepts files that pass."""
    with path.open("r+b") as stream:
        stream.write(content)
        stream.truncate()
    try:
        header = read_header(path)
    except ModelError as error:
        line = str(error)
        assert line.isprintable()
        assert len(line) < len(str(path)) + 450
        return None
    with safe_open(path, "pt") as reference:
        assert set(reference.keys()) == set(header.tensors)
    return header


def test_header_and_tensors_equal_the_library(small: Path) -> None:
    header = read_header(small)
    assert header.metadata == {"format": "pt"}
    with safe_open(small, "pt") as reference:
        assert set(header.tensors) == set(reference.keys()) == set(TENSORS)
        for name, info in header.tensors.items():
            view = reference.get_slice(name)
            assert (info.dtype, list(info.shape)) == (view.get_dtype(), view.get_shape())
    loaded = load(small)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].double(), tensor.double())
        info = header.tensors[name]
        raw = small.read_bytes()[info.offset : info.offset + info.nbytes]
        assert raw == bytes(tensor.reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("name", VALID)
def test_valid(scratch: Path, name: str) -> None:
    assert check(scratch, VALID[name]) is not None
    load(scratch)


@pytest.mark.parametrize("name", MALFORMED)
def test_defect_is_reported_in_one_line(scratch: Path, name: str) -> None:
    content, message = MALFORMED[name]
    scratch.write_bytes(content)
    for read in (read_header, load):
        with pytest.raises(ModelError, match=message) as error:
            read(scratch)
        line = str(error.value)
        assert line.isprintable()
        assert line.startswith(f"{scratch}: ")
        assert line.endswith("; download or convert it again")


def test_header_of_17_mib(scratch: Path) -> None:
    scratch.write_bytes(file({}, data=0, length=17 << 20) + bytes(17 << 20))
    with pytest.raises(ModelError, match="its header has 17825792 bytes, at most 16777216"):
        read_header(scratch)


def test_truncation_at_every_byte(small: Path, scratch: Path) -> None:
    content = small.read_bytes()
    for size in range(len(content)):
        assert check(scratch, content[:size]) is None
    assert check(scratch, content) is not None


def test_every_bit_of_the_header(scratch: Path) -> None:
    content = VALID["metadata"]
    for bit in range(8 * (len(content) - 16)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        check(scratch, bytes(flipped))


@settings(max_examples=100, deadline=None)
@given(
    damages=st.lists(
        st.tuples(
            st.integers(0, 600),
            st.integers(0, 8),
            st.binary(max_size=8) | st.text('{}[]",:0123456789-').map(str.encode),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_mutations(small: Path, scratch: Path, damages: list[tuple[int, int, bytes]]) -> None:
    content = small.read_bytes()
    for place, dropped, put in damages:
        content = content[:place] + put + content[place + dropped :]
    check(scratch, content)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "whole.safetensors")
    return shard(tmp_path / "whole.safetensors", tmp_path, 3)


def test_all_parts_are_read_as_one_model(sharded: Path) -> None:
    header = read_header(sharded)
    assert header.tensors.keys() == TENSORS.keys()
    assert [file.name for file in header.files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for name, info in header.tensors.items():
        with safe_open(header.files[info.part], "pt") as part:
            assert tuple(part.get_tensor(name).shape) == info.shape
    loaded = load(sharded)
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name].view(torch.uint8), TENSORS[name].view(torch.uint8)) for name in ("ids", "half"))


def part(first: Path, number: int) -> Path:
    return first.with_name(f"model-0000{number}-of-00003.safetensors")


BROKEN_PARTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is missing": (lambda f: part(f, 2).unlink(), "missing 1 of its 3 parts .model-00002-of-00003.safetensors"),
    "a part was cut": (
        lambda f: part(f, 3).write_bytes(part(f, 3).read_bytes()[:-1]),
        "model-00003-of-00003.safetensors: broken safetensors file: its tensors end at",
    ),
    "a tensor twice": (
        lambda f: part(f, 3).write_bytes(f.read_bytes()),
        "model-00003-of-00003.safetensors: tensor .* is in an earlier part, too; download the parts again",
    ),
}


@pytest.mark.parametrize("name", BROKEN_PARTS)
def test_defect_of_parts_is_reported_in_one_line(sharded: Path, name: str) -> None:
    spoil, message = BROKEN_PARTS[name]
    spoil(sharded)
    for read in (read_header, load):
        with pytest.raises(ModelError, match=message) as raised:
            read(sharded)
        assert "\n" not in str(raised.value)


def test_another_part_names_the_first(sharded: Path) -> None:
    with pytest.raises(ModelError, match=r"part 2 of 3; give the first one, model-00001-of-00003\.safetensors"):
        read_header(part(sharded, 2))
