"""Split model files: GGUF like llama.cpp's gguf-split, metadata in the first part; safetensors with an index."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file, save_file

from tests.support.gguf_writing import finish


def split_file(source: Path, folder: Path, stem: str, parts: int, empty_first: bool = False) -> Path:
    """Write `stem-00001-of-0000N.gguf` and its siblings into `folder`; return the first path."""
    reader = gguf.GGUFReader(source)
    tensors = list(reader.tensors)
    shares = [[], *_shares(tensors, parts - 1)] if empty_first else _shares(tensors, parts)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    for index, share in enumerate(shares):
        path = folder / f"{stem}-{index + 1:05}-of-{parts:05}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        if index == 0:
            _copy_metadata(reader, writer)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in share:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        finish(writer)
    return folder / f"{stem}-00001-of-{parts:05}.gguf"


def shard(source: Path, folder: Path, parts: int) -> Path:
    """Write `model-00001-of-0000N.safetensors`, its siblings and their index into `folder`; return the first path."""
    tensors = load_file(source)
    files = {name: f"model-{i % parts + 1:05}-of-{parts:05}.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": source.stat().st_size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / f"model-00001-of-{parts:05}.safetensors"


def _shares(tensors: list[gguf.ReaderTensor], parts: int) -> list[list[gguf.ReaderTensor]]:
    size = -(-len(tensors) // parts)
    return [tensors[first : first + size] for first in range(0, size * parts, size)]


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == gguf.Keys.General.ARCHITECTURE:
            continue
        kind, *inner = field.types
        writer.add_key_value(key, field.contents(), kind, inner[0] if inner else None)
