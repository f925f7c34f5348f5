"""The configuration of a drafter from its file: a `dflash` GGUF, or safetensors (in parts, too) with config.json beside
them.

Whether there is an embedding, a head and a confidence head, and which tokens a reduced vocabulary has, the safetensors
say. Where they are not there yet (a pair is planned before it is downloaded), there is none.
"""

import json
import struct
from dataclasses import replace
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.shapes.dflash_config import DFlashConfig, checked
from localdflash.models.shapes.dflash_gguf import config_of_gguf
from localdflash.models.shapes.dflash_json import config_of_json
from localdflash.models.weights import gguf, safetensors

LARGEST_JSON = 1 << 20  # bytes
UNUSED = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # of speculators: for training
INTEGERS = {"I64": "<q", "I32": "<i"}  # for `struct`


def config_of_file(path: Path) -> DFlashConfig:
    """The configuration of a drafter's weights: in the GGUF file itself, or in config.json beside safetensors."""
    if path.suffix == ".gguf":
        return config_of_gguf(gguf.read_header(path))
    beside = path.with_name("config.json")
    with open_model(beside) as (stream, size):
        if size > LARGEST_JSON:
            raise ModelError(f"{beside}: larger than {LARGEST_JSON >> 20} MiB: not a drafter's configuration")
        text = stream.read()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{beside}: cannot read the drafter's configuration: {error}") from None
    config = config_of_json(document, str(beside))
    return _with_tensors(config, safetensors.read_header(path)) if path.exists() else config


def plain_name(name: str) -> str:
    """Return a tensor of safetensors as z-lab names it."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _with_tensors(config: DFlashConfig, header: safetensors.SafetensorsHeader) -> DFlashConfig:
    names = {plain_name(name): info for name, info in header.tensors.items()}
    offsets = names.get("d2t")
    found = replace(
        config,
        own_embedding="embed_tokens.weight" in names,
        own_head="lm_head.weight" in names,
        judges=config.judges or "confidence_head.proj.weight" in names,
    )
    if offsets and offsets.shape[0] < config.decoder.vocab_size and not config.short:
        found = replace(found, short=_ids(header.files[offsets.part], offsets))
    return checked(found, str(header.path))


def _ids(path: Path, info: safetensors.SafetensorInfo) -> tuple[int, ...]:
    """Return the tokens of a reduced vocabulary, of which the file has the distance from their rows."""
    if info.dtype not in INTEGERS or len(info.shape) != 1:
        raise ModelError(f"{path}: tensor {info.name} is no list of tokens; download it again")
    with open_model(path) as (stream, _):
        stream.seek(info.offset)
        offsets = struct.iter_unpack(INTEGERS[info.dtype], stream.read(info.nbytes))
        return tuple(row + offset for row, (offset,) in enumerate(offsets))
