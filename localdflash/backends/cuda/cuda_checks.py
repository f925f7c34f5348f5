"""Checks of model files before the CUDA engine loads them: its kernels do not check shapes."""

from localdflash.backends.cpu.model_source import list_layer_shapes, map_target_names
from localdflash.backends.cuda.stack import ROWS
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.qkv import HEAD_DIMS
from localdflash.kernels.cuda.selector import MAX_K
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader

# Bits per weight in `Planes` (separate arrays of codes and scales), and R: k is padded to a multiple of 4 R.
PLANES = {
    GGMLType.Q4_0: (4.5, 32),
    GGMLType.Q4_1: (5.0, 32),
    GGMLType.Q8_0: (8.5, 32),
    GGMLType.Q4_K: (4.625, 32),
    GGMLType.Q5_K: (6.625, 32),
    GGMLType.Q6_K: (6.625, 16),
    GGMLType.MXFP4: (4.5, 32),
    GGMLType.NVFP4: (5.0, 16),
}


def check_heads(config: DecoderConfig, path: str) -> None:
    """Raise ModelError for a head size that the kernels do not support."""
    if config.head_dim not in HEAD_DIMS:
        sizes = " and ".join(map(str, HEAD_DIMS))
        raise ModelError(
            f"{path}: heads of {config.head_dim} channels (the CUDA engine runs {sizes}); use `--backend llama.cpp`"
        )


def check_tensor_types(header: GGUFHeader) -> None:
    """Raise ModelError for a matrix whose type is not one of `PLANES`, except a router ("ffn_gate_inp")."""
    for info in header.tensors.values():
        if len(info.shape) > 1 and info.ggml_type not in PLANES and "_inp" not in info.name:
            raise ModelError(
                f"{header.path}: tensor {info.name} is {info.ggml_type.name}, which the CUDA engine does not run;"
                " use `--backend llama.cpp`"
            )


def check_drafter(config: DFlashConfig, path: str) -> None:
    """Raise ModelError for a drafter whose head, block, selector or taps the kernels do not support."""
    cases = (
        (config.block_size > ROWS, f"blocks of {config.block_size} tokens, more than {ROWS}"),
        (config.selector_top_k > MAX_K, f"{config.selector_top_k} candidates per draft token, more than {MAX_K}"),
        (len(set(config.taps)) < len(config.taps), "a duplicate tap"),
    )
    for is_unsupported, problem in cases:
        if is_unsupported:
            raise ModelError(f"{path}: the CUDA engine runs no drafters with {problem}; use `--backend llama.cpp`")


def check_target(header: GGUFHeader, config: DecoderConfig) -> None:
    """Raise ModelError if a tensor of a target is missing (except biases) or has the wrong shape."""
    shapes = list_layer_shapes(config) | {"norm": (config.hidden_size,)}
    shapes |= dict.fromkeys(("embedding", "head"), (config.vocab_size, config.hidden_size))
    names = map_target_names(header.architecture, config)
    if config.tie_word_embeddings:
        del names["output.weight"]
    expected = {theirs: shapes[ours] for theirs, ours in names.items() if ours in shapes}
    for name in header.tensors:
        if name.endswith(".bias") and (weight := expected.get(f"{name.removesuffix('bias')}weight")):
            expected[name] = weight[:1]
    for name, shape in expected.items():
        if (info := header.tensors.get(name)) is None:
            raise ModelError(f"{header.path}: tensor {name} is missing; download or convert the model again")
        if info.shape != shape:
            found = list(info.shape)
            raise ModelError(
                f"{header.path}: tensor {name} has shape {found}, not {list(shape)}; convert the model again"
            )
