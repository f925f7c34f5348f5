"""Facts about a pair without a registry entry, read from its files; for example a GGUF file given by path."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

from localdflash.backends.cuda.device import driver_present
from localdflash.base.errors import ModelError, NoDevice
from localdflash.base.extras import missing_module
from localdflash.loading.plan.here import number_of, quantization
from localdflash.models.registry.pair_entry import DrafterSource, PairEntry
from localdflash.models.registry.registry import missing_files
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, read_header


def describe_pair(pair: PairEntry) -> PairEntry:
    """Return the entry with the facts of its files; with a note, if the target's file is broken."""
    if pair.architecture or missing_files(pair):
        return pair
    try:
        header = read_header(pair.target.path)
        architecture = header.architecture
    except ModelError as error:
        return replace(pair, notes=(*pair.notes, str(error)))
    drafter = pair.drafter and _drafter(pair.drafter)
    return replace(
        pair,
        target=replace(pair.target, quantization=quantization(header)),
        drafter=drafter,
        backends=tuple(_backends(header, drafter.path if drafter else None)),
        architecture=architecture,
        licence=_text(header, "general.license"),
        context=number_of(header, "context_length"),
        layers=number_of(header, "block_count"),
    )


def _drafter(source: DrafterSource) -> DrafterSource:
    from localdflash.models.shapes.dflash_file import config_of_file

    try:
        config = config_of_file(source.path)
    except ModelError:
        return source
    return replace(source, block_size=config.block_size, taps=config.taps)


def _backends(header: GGUFHeader, drafter: Path | None) -> Iterator[str]:
    """Yield the installed backends that can run these files; "cuda" only where there is a driver: torch takes 5 s."""
    from localdflash.backends.cpu.cpu_sizes import CpuSizes
    from localdflash.backends.cpu.model_source import check_target_file
    from localdflash.models.shapes.gguf_config import decoder_config

    if not missing_module("llama"):
        yield "llama.cpp"
    with suppress(ModelError, NoDevice):
        CpuSizes(header.path, drafter)
        yield "cpu"
    if missing_module("torch"):
        return
    with suppress(ModelError):
        decoder_config(header)
        check_target_file(header.path, header)
        yield "torch"
    if missing_module("cuda") or not driver_present():
        return
    from localdflash.backends.cuda.cuda_sizes import CudaSizes

    with suppress(ModelError):
        CudaSizes(header.path, drafter)
        yield "cuda"


def _text(header: GGUFHeader, name: str) -> str | None:
    value = header.metadata.get(name)
    return value if isinstance(value, str) else None


FLOATS = {kind.name for kind in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)}


def run_types(path: Path) -> str:
    """Return the types of a GGUF's matrices, most weights first, and how they run; "" if the file is unreadable."""
    try:
        header = read_header(path)
    except ModelError:
        return ""
    weights: Counter[str] = Counter()
    for info in header.tensors.values():
        if len(info.shape) > 1 and "_inp" not in info.name:  # without the small routers
            weights[info.ggml_type.name] += prod(info.shape)
    types = [name for name, _ in weights.most_common()]
    rounded = [name for name in types if name in FLOATS]
    how = f"{', '.join(rounded)} rounded to 8 bits by cpu and cuda" if rounded else "run unmodified"
    return f"{', '.join(types)}: {how}" if types else ""
