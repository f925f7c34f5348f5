"""The short head in a drafter's GGUF, checked before llama.cpp reads it: an id that is no token ends the process."""

import numpy as np

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.shapes.dflash_config import ANOTHER_LIST, SHORT_HEAD, DFlashConfig
from localdflash.models.weights.gguf import GGUFHeader


def check_short_head(header: GGUFHeader, config: DFlashConfig) -> None:
    """ModelError if `d2t` holds other ids than the configuration, or its rows are not those of a head."""
    ids_name, rows_name = SHORT_HEAD
    if ids_name not in header.tensors:
        return
    info, rows = header.tensors[ids_name], header.tensors.get(rows_name)
    if info.ggml_type.name != "I64" or rows is None or rows.shape != (*info.shape, config.decoder.hidden_size):
        raise ModelError(f"{header.path}: {ids_name} and {rows_name} do not belong together; {ANOTHER_LIST}")
    with open_model(header.files[info.part]) as (stream, _):
        stream.seek(info.offset)
        ids = np.frombuffer(stream.read(info.nbytes), "<i8")
    if not np.array_equal(ids, config.short):
        raise ModelError(f"{header.path}: {ids_name} is not its short vocabulary; {ANOTHER_LIST}")
