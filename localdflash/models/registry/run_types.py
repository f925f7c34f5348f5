"""In which types a target's weights are run: those of its file, which no backend re-quantizes but floats."""

from collections import Counter
from math import prod
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import read_header

FLOATS = {kind.name for kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)}


def run_types(path: Path) -> str:
    """The types of a GGUF's matrices, most weights first, and how they run; "" if it cannot be read."""
    try:
        header = read_header(path)
    except ModelError:
        return ""
    weights: Counter[str] = Counter()
    for info in header.tensors.values():
        if len(info.shape) > 1 and "_inp" not in info.name:  # a router is no large matrix
            weights[info.ggml_type.name] += prod(info.shape)
    types = [name for name, _ in weights.most_common()]
    rounded = [name for name in types if name in FLOATS]
    how = f"{', '.join(rounded)} rounded to 8 bits by cpu and cuda" if rounded else "run as the file has them"
    return f"{', '.join(types)}: {how}" if types else ""
