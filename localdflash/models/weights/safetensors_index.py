"""The index of a safetensors model in several files, NAME.safetensors.index.json: which tensor is in which of them."""

import json
from collections.abc import Mapping
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model

AGAIN = "download it again"
LARGEST_JSON = 16 << 20  # bytes; the index of a mixture of experts is large
END = ".safetensors.index.json"
MAX_QUOTED = 80


def read_index(path: Path) -> dict[str, str]:
    """The file's name by tensor; ModelError for an index that is damaged, or names a file that is not beside it."""
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path}: weight_map is missing; {AGAIN}")
    for name in map(str, weight_map.values()):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{path}: {name[:MAX_QUOTED]!r} is no safetensors file beside it; {AGAIN}")
    return {tensor: str(name) for tensor, name in weight_map.items()}


def check_index(first: Path, places: Mapping[str, str]) -> None:
    """ModelError where an index beside the first part puts a tensor elsewhere than `places`, file's names by tensor."""
    index = first.with_name(first.name.rpartition("-00001-of-")[0] + END)
    if not index.exists():
        return
    said = read_index(index)
    if odd := next((name for name in sorted(said.keys() | places.keys()) if said.get(name) != places.get(name)), None):
        there, wanted = places.get(odd, "no part"), said.get(odd, "no part")
        raise ModelError(
            f"{index}: tensor {odd[:MAX_QUOTED]!a} is in {there}, by the index in {wanted}; download all parts again"
        )


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file beside weights; ModelError for anything else."""
    with open_model(path) as (stream, size):
        if size > LARGEST_JSON:
            raise ModelError(f"{path}: larger than {LARGEST_JSON >> 20} MiB; {AGAIN}")
        text = stream.read()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; {AGAIN}") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path}: expected a JSON object; {AGAIN}")
    return document
