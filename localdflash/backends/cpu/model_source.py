"""What a model file holds for the CPU engine: every tensor with our name for it, checked before a byte of it is read.

ModelError of one line for a tensor that is missing, has another shape or a type that the kernels do not know, or has no
place in the model (a bias, for example). Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from localdflash.backends.cpu.matrices import FLOATS, GROUP, KINDS, PANEL, SHRINKING, Kind, MatrixShape
from localdflash.backends.cpu.packed_model import BASES, DELTA_VECTORS, HEAD_VECTORS, VECTORS
from localdflash.backends.cpu.tensors import Shape, drafter_names, drafter_shapes, names_of, shapes_of
from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import UNUSED, config_of_file, plain_name
from localdflash.models.shapes.dflash_gguf import own_tensors
from localdflash.models.shapes.dflash_tensors import key_of
from localdflash.models.shapes.gguf_config import ROPE_FACTORS
from localdflash.models.shapes.target_config import blocks_of, target_config
from localdflash.models.weights import gguf, safetensors, split
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import TensorInfo

OTHERWISE = "use `--backend llama.cpp`"
FLOAT_PARTS = VECTORS | DELTA_VECTORS | HEAD_VECTORS | BASES | {"norm", "fuse_norm"}
LEFT_OUT = "confidence_bias"  # by some files, which means zero
DTYPES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}

Config = TypeVar("Config", DecoderConfig, DFlashConfig)


@dataclass(frozen=True)
class FileTensor:
    """A tensor of the file. `name` is our own: "layers.0.query" is the field `query` of `PackedLayer`."""

    name: str
    tensor: TensorInfo
    matrix: MatrixShape | None  # None: numbers in float32
    paired: int = 0  # head_dim where neighbours 2i and 2i + 1 of a head are to become i and i + head_dim / 2


@dataclass(frozen=True)
class CheckedFile(Generic[Config]):
    """A model file whose tensors all fit; its data starts at `data_offset`. `files` holds all parts of one in parts."""

    path: Path
    config: Config
    parts: tuple[FileTensor, ...]
    data_offset: int

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors, by `TensorInfo.part`."""
        return split.files_of(self.path)


def target_source(path: Path, header: gguf.GGUFHeader | None = None) -> CheckedFile[DecoderConfig]:
    """A GGUF that the engine runs, whose header may have been read already."""
    header = header or gguf.read_header(path)
    config = target_config(header)
    hidden = (config.hidden_size,)
    top = {"embedding": (config.vocab_size, *hidden), "norm": hidden}
    if not config.tie_word_embeddings:
        top["head"] = top["embedding"]
    names = names_of(header.architecture, config)
    tensors = {name: info for name, info in header.tensors.items() if not _is_unused(header, config, name)}
    paired = config.head_dim if header.architecture == "llama" else 0
    _check_heads(path, config)
    parts = _parts(path, tensors, names, top | shapes_of(config), paired)
    return CheckedFile(path, config, parts, header.data_offset)


def _is_unused(header: gguf.GGUFHeader, config: DecoderConfig, name: str) -> bool:
    """Whether a tensor is no part of the blocks: Llama's RoPE, or blocks that predict tokens further ahead."""
    if name == ROPE_FACTORS:
        return header.architecture == "llama"
    parts = name.split(".")
    return parts[0] == "blk" and parts[1].isdecimal() and config.num_hidden_layers <= int(parts[1]) < blocks_of(header)


def drafter_source(path: Path, bits: int = 8) -> CheckedFile[DFlashConfig]:
    """A `dflash` GGUF, or z-lab's safetensors with config.json beside it. With 4 bits floats and Q8_0 become Q4_0."""
    config = config_of_file(path)
    names = drafter_names(config)
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        tensors, data_offset = own_tensors(header), header.data_offset
    else:
        tensors, data_offset = _safetensors(path)
        names = {key_of(theirs): ours for theirs, ours in names.items()}
    _check_heads(path, config.decoder)
    shapes, found = drafter_shapes(config), {names.get(theirs) for theirs in tensors}
    if LEFT_OUT not in found:
        shapes.pop(LEFT_OUT, None)
    parts = _parts(path, tensors, names, shapes, 0)
    return CheckedFile(path, config, tuple(map(_shrunk, parts)) if bits == 4 else parts, data_offset)


def _shrunk(part: FileTensor) -> FileTensor:
    if part.matrix is None or part.tensor.ggml_type not in SHRINKING:
        return part
    return replace(part, matrix=replace(part.matrix, kind=Kind.Q4_0))


def _safetensors(path: Path) -> tuple[dict[str, TensorInfo], int]:
    """The tensors of a drafter's safetensors as z-lab names them, and where the data of a file starts at the least."""
    tensors, header = {}, safetensors.read_header(path)
    for name, info in header.tensors.items():
        if plain_name(name) in UNUSED:
            continue
        if info.dtype not in DTYPES:
            raise ModelError(f"{path}: tensor {name} is {info.dtype}, which the CPU engine cannot read")
        place = info.offset, info.nbytes, info.part
        tensors[plain_name(name)] = TensorInfo(name, info.shape, DTYPES[info.dtype], *place)
    return tensors, min((info.offset for info in header.tensors.values()), default=0)


def _check_heads(path: Path, config: DecoderConfig) -> None:
    if config.head_dim % PANEL:
        raise ModelError(f"{path}: its heads have {config.head_dim} channels, not a multiple of {PANEL}: {OTHERWISE}")


def _parts(
    path: Path, tensors: Mapping[str, TensorInfo], names: Mapping[str, str], shapes: Mapping[str, Shape], paired: int
) -> tuple[FileTensor, ...]:
    """The parts that `shapes` asks for; `names` maps our names to the file's."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        ours = names.get(name, "")
        if ours not in shapes:
            raise ModelError(f"{path}: tensor {name} has no place in this model: {OTHERWISE}")
        found[ours] = info
    theirs = {ours: name for name, ours in names.items()}
    parts = []
    for ours, shape in shapes.items():
        if ours not in found:
            raise ModelError(f"{path}: tensor {theirs[ours]} is missing; download or convert the model again")
        turned = paired if ours.endswith((".query", ".key")) else 0
        parts.append(_part(path, ours, found[ours], shape, turned))
    return tuple(parts)


def is_vector(ours: str) -> bool:
    """Whether a part is kept as numbers in float32."""
    return ours.rpartition(".")[2] in FLOAT_PARTS


def _as_ggml(shape: Shape) -> Shape:
    """A shape without the leading ones, which a file may have or not."""
    return _as_ggml(shape[1:]) if len(shape) > 1 and shape[0] == 1 else shape


def _part(path: Path, ours: str, info: TensorInfo, shape: Shape, paired: int) -> FileTensor:
    if _as_ggml(info.shape) != _as_ggml(shape):
        found, wanted = list(info.shape), list(shape)
        raise ModelError(f"{path}: tensor {info.name} has shape {found}, not {wanted}; convert the model again")
    if info.ggml_type not in (FLOATS if is_vector(ours) else KINDS):
        raise ModelError(
            f"{path}: tensor {info.name} is {info.ggml_type.name}, which the CPU engine cannot read: {OTHERWISE}"
        )
    if is_vector(ours):
        return FileTensor(ours, info, None)
    if shape[-1] % GROUP:
        raise ModelError(
            f"{path}: tensor {info.name} has rows of {shape[-1]} weights, not a multiple of {GROUP}: {OTHERWISE}"
        )
    experts = shape[0] if len(shape) == 3 else 1
    return FileTensor(ours, info, MatrixShape(KINDS[info.ggml_type], shape[-2], shape[-1], experts), paired)
