"""What a code adapter leaves: its own file, and the base's vocabulary with names for the markers."""

from pathlib import Path
from typing import Any

import gguf
from safetensors.torch import save

from localdflash.train.adapter import Adapter

NAME, TOKENS = "general.name", "tokenizer.ggml.tokens"
CODE_NAME = "SmolLM2 135M localdflash code"  # what `text/fim.py` knows the format by
# Tokens of the vocabulary that no training has used become the markers.
MARKERS = {14: "<fim_prefix>", 15: "<fim_suffix>", 16: "<fim_middle>"}
TRAINED = (3, 5, *MARKERS)  # with `<repo_name>` and `<file_sep>`, which stand before other files


def write_adapter(path: Path, adapter: Adapter, base: str) -> None:
    """The trained numbers in bfloat16, with the hash of the base that they are for."""
    tensors = {name: parameter.detach().bfloat16().contiguous() for name, parameter in adapter.parameters()}
    about = {"base_sha256": base, "tokens": ",".join(map(str, adapter.embedding.tokens.tolist()))}
    part = path.with_suffix(".part")
    part.write_bytes(save(tensors, about))
    part.replace(path)


def write_vocabulary(source: Path, path: Path) -> None:
    """The base's metadata with the markers' names, without weights: enough for a tokenizer."""
    finish(copied(gguf.GGUFReader(source), path), path)


def copied(source: gguf.GGUFReader, path: Path, **changed: Any) -> gguf.GGUFWriter:
    """A writer of `path` that has a file's metadata with the names above; `general_file_type=7` changes one more."""
    writer = gguf.GGUFWriter(_part(path), source.fields["general.architecture"].contents())
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = changed.get(name.replace(".", "_"), field.contents())
        if name == NAME:
            value = CODE_NAME
        elif name == TOKENS:
            value = [MARKERS.get(token, text) for token, text in enumerate(value)]
        kind = field.types[0]
        writer.add_key_value(name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    return writer


def finish(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write the file, as a whole or not at all."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _part(path).replace(path)


def _part(path: Path) -> Path:
    return path.with_suffix(".part")
