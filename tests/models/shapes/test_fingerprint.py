"""Which target a drafter was trained for: what changes the digest, what does not, and what the user is told."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localdflash.lab.train.pair_export import add_target, write_json
from localdflash.loading.backends import load_on
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.shapes.fingerprint import TrainedFor, mismatch, trained_for
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.support.tiny_models import SHAPE, write_target


@pytest.fixture
def target(tmp_path: Path) -> GGUFHeader:
    return read_header(write_target(tmp_path / "target.gguf", SHAPE))


def changed(target: GGUFHeader, path: Path, tensor: str = "", at: int = 0) -> GGUFHeader:
    """The same model with other metadata and another alignment; a byte of one tensor may be another."""
    reader, writer = gguf.GGUFReader(target.path), gguf.GGUFWriter(path, "qwen3")
    writer.add_custom_alignment(256)
    writer.add_chat_template("{{ 'mended' }}")
    writer.add_name("renamed")
    for name, field in reader.fields.items():
        if name.startswith("qwen3."):
            writer.add_key_value(name, field.contents(), field.types[0])
    for one in reversed(reader.tensors):
        data = one.data.copy()
        if one.name == tensor:
            data.reshape(-1).view("uint8")[at] ^= 1
        writer.add_tensor(one.name, data, raw_dtype=one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_header(path)


def test_metadata_order_and_alignment_do_not_matter(target: GGUFHeader, tmp_path: Path) -> None:
    found, again = trained_for(target), trained_for(changed(target, tmp_path / "again.gguf"))
    assert again == replace(found, name="again.gguf")
    assert (found.name, found.kind) == ("target.gguf", "qwen3, 3 blocks of 128, Q8_0")
    assert len(found.digest) == 32


@pytest.mark.parametrize("tensor", ["blk.1.attn_q.weight", "output_norm.weight"])
def test_other_weights_matter(tensor: str, target: GGUFHeader, tmp_path: Path) -> None:
    other = changed(target, tmp_path / "target.gguf.other", tensor)
    assert trained_for(other).digest != trained_for(target).digest
    assert trained_for(other).kind == trained_for(target).kind


# What is said


def test_one_line_for_another_quantization(target: GGUFHeader, tmp_path: Path) -> None:
    wanted = trained_for(target, 2.304)
    other = read_header(write_target(tmp_path / "other.gguf", SHAPE, "Q4_0"))
    assert mismatch(tmp_path / "drafter.gguf", wanted, other) == (
        "drafter.gguf was trained for target.gguf (qwen3, 3 blocks of 128, Q8_0), where it gets 2.30 tokens a verify;"
        " other.gguf is qwen3, 3 blocks of 128, Q4_0, so it may get fewer:"
        " `localdflash train drafter --pair` makes one for it"
    )


# Where it is said


def with_target(pair: Path, folder: Path, wanted: TrainedFor) -> LocalPair:
    """The pair with a drafter that says which target it was trained for, in both of its forms."""
    folder.mkdir()
    reader, writer = gguf.GGUFReader(pair / "drafter.gguf"), gguf.GGUFWriter(folder / "drafter.gguf", "dflash")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    add_target(writer, wanted)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "drafter.safetensors").write_bytes((pair / "drafter.safetensors").read_bytes())
    document = json.loads((pair / "config.json").read_text())
    write_json(folder / "config.json", document | {"localdflash": {"target": vars(wanted)}})
    return LocalPair("tiny", pair / "target.gguf", None, None, None, None)


@pytest.mark.parametrize(
    ("backend", "form", "fits"),
    [("cpu", "gguf", False), ("cpu", "gguf", True), ("llama.cpp", "gguf", False), ("torch", "safetensors", False)],
)
@pytest.mark.usefixtures("cpu_engine", "drafting")
def test_every_backend_says_it(backend: str, form: str, fits: bool, tiny_pair: Path, tmp_path: Path) -> None:
    wanted = trained_for(read_header(tiny_pair / "target.gguf"), 1.5)
    wanted = wanted if fits else replace(wanted, digest="0" * 32)
    files = with_target(tiny_pair, tmp_path / "pair", wanted)
    drafter = tmp_path / "pair" / f"drafter.{form}"
    files = replace(files, drafter_gguf=drafter) if form == "gguf" else replace(files, drafter_safetensors=drafter)
    running = load_on(backend, files, Options(context=64))  # type: ignore[arg-type]
    running.close()
    said = [line for line in running.notices if "was trained for" in line]
    assert len(said) == (0 if fits else 1)
    assert all("gets 1.50 tokens a verify" in line for line in said)
