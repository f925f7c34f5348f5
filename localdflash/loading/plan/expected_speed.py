"""Upper bound of a pair's speed on this machine: memory bandwidth over the bytes that a token reads."""

from math import prod

from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader

MOSTLY = "MOSTLY_"


def bytes_per_token(header: GGUFHeader) -> int:
    """Return the bytes of weights that a token reads: only active experts, no embedding table besides the head."""
    gathered = "token_embd.weight" if "output.weight" in header.tensors else ""
    count = _fact(header, "expert_count") or 1
    used = _fact(header, "expert_used_count") or count
    dense, experts = 0, 0
    for name, info in header.tensors.items():
        if "_exps" in name:
            experts += info.nbytes
        elif name != gathered:
            dense += info.nbytes
    return dense + experts * used // count


def matrices(header: GGUFHeader) -> tuple[int, int]:
    """Return the number of weights that a quantization changes, and the bytes of all others (norms, routers)."""
    weights, others = 0, 0
    for info in header.tensors.values():
        if len(info.shape) > 1 and info.ggml_type != GGMLType.F32:
            weights += prod(info.shape)
        else:
            others += info.nbytes
    return weights, others


def quantization(header: GGUFHeader) -> str:
    """Return the quantization that the file names ("Q4_K_M"), else the type of most of its bytes."""
    from gguf import LlamaFileType

    code = header.metadata.get("general.file_type")
    if isinstance(code, int) and code in set(LlamaFileType):
        return str(LlamaFileType(code).name).removeprefix(MOSTLY).removeprefix("ALL_")
    sizes: dict[str, int] = {}
    for info in header.tensors.values():
        sizes[info.ggml_type.name] = sizes.get(info.ggml_type.name, 0) + info.nbytes
    return max(sizes, key=sizes.__getitem__) if sizes else "no weights"


def tokens_per_second(bandwidth: float, target_bytes: int) -> float:
    """Return the upper bound without drafting at a bandwidth in GB/s; engines reach 40 to 85 % of it."""
    return bandwidth * 1e9 / max(target_bytes, 1)


def _fact(header: GGUFHeader, name: str) -> int:
    value = header.metadata.get(f"{header.metadata.get('general.architecture')}.{name}")
    return value if isinstance(value, int) else 0
