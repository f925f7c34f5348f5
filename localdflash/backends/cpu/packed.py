"""Packed models: a file is packed once, kept in the cache folder and mapped into memory from then on.

A packed file is for this user alone, and complete: it gets its name when everything is on disk. One of the wrong size,
with a damaged header, of another version or of an older source is packed again, as is one whose weights changed; they
are read through once after any change of the file. If it cannot be kept, the packed weights live in memory, and
`notice` says so. Opening a packed model imports no torch.
"""

import hashlib
import mmap
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.image import Header, ImageLayout, Stamp, mapped, parts_of, read_header
from localdflash.backends.cpu.model_source import CheckedFile, Config, drafter_source, target_source
from localdflash.backends.cpu.packed_files import SEAL, SUFFIX, NotKept, Output, clean, is_intact, remove
from localdflash.backends.cpu.packed_model import PackedDecoder, PackedDrafter, PackedHeads, PackedLayer
from localdflash.backends.cpu.packing import Progress, header_of, pack
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.files import paths
from localdflash.base.files.regular import open_model
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights import split

SPARE_BYTES = 1 << 28  # what stays free on the disk


def open_target(path: Path, progress: Progress | None = None) -> PackedDecoder:
    """The packed model of a GGUF file; ModelError says what is wrong with the file."""
    config, parts, notice = _opened(path, DecoderConfig, target_source, progress)
    head = parts.get("head", parts["embedding"])
    layers = _layers(parts, config.num_hidden_layers)
    return PackedDecoder(config, parts["embedding"], head, parts["norm"], layers, notice)


def open_drafter(path: Path, progress: Progress | None = None, bits: int = 8) -> PackedDrafter:
    """The packed drafter of a `dflash` GGUF, or of safetensors with config.json beside it; ModelError as above.

    With 4 bits its matrices in floats and in Q8_0 are rounded to Q4_0.
    """
    config, parts, notice = _opened(path, DFlashConfig, partial(drafter_source, bits=bits), progress, bits)
    layers = _layers(parts, config.decoder.num_hidden_layers)
    own = parts.get("embedding"), parts.get("head")
    heads = PackedHeads(**{name: parts[name] for name in _names(PackedHeads) if name in parts})
    return PackedDrafter(config, parts["fuse"], parts["fuse_norm"], parts["norm"], layers, *own, heads, notice)


def _layers(parts: dict[str, Any], count: int) -> tuple[PackedLayer, ...]:
    names = _names(PackedLayer)
    return tuple(
        PackedLayer(**{name: parts[f"layers.{i}.{name}"] for name in names if f"layers.{i}.{name}" in parts})
        for i in range(count)
    )


def _names(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def _opened(
    path: Path,
    kind: type[Config],
    read_source: Callable[[Path], CheckedFile[Config]],
    progress: Progress | None,
    bits: int = 8,
) -> tuple[Config, dict[str, Any], str]:
    """Configuration, parts and notice of a model that was packed before or is packed now."""
    path = Path(os.path.abspath(path))
    with open_model(path):
        file = _file_of(path, bits)
    found: tuple[Config, dict[str, Any]] | None = _kept(file, path, kind)
    if found is not None:
        return found[0], found[1], ""
    source = read_source(path)
    header = header_of(source, _stamp(path, kind, source.data_offset))
    try:
        _keep(file, source, header, progress)
        found = _kept(file, path, kind)
        if found is not None:
            return found[0], found[1], ""
        reason = "another process replaced it"
    except NotKept as error:
        reason = str(error)
    notice = f"{file.parent}: the packed weights of {path.name} cannot be kept ({reason}): every start packs them again"
    return source.config, parts_of(header, _in_memory(source, header, progress)), notice


def _file_of(path: Path, bits: int) -> Path:
    """The path of a source's packed file; there is one for each path, and another for its matrices in four bits."""
    name = hashlib.blake2b(_real(path), digest_size=16).hexdigest()
    return paths.cache_folder() / "cpu" / f"{name}{'-4' if bits == 4 else ''}{SUFFIX}"


def _real(path: Path) -> bytes:
    return os.fsencode(os.path.realpath(path))


def _stamp(path: Path, kind: type[Config], header_bytes: int) -> Stamp:
    digest = hashlib.blake2b(digest_size=16)
    with open_model(path) as (stream, size):
        about = os.fstat(stream.fileno())
        digest.update(stream.read(header_bytes))
    for part in split.files_of(path)[1:]:
        with open_model(part) as (stream, bytes_there):
            changed = os.fstat(stream.fileno()).st_mtime_ns
            digest.update(f"\n{part.name} {bytes_there} {changed}\n".encode() + stream.read(header_bytes))
    if kind is DFlashConfig and path.suffix != ".gguf":
        with open_model(path.with_name("config.json")) as (stream, _):
            digest.update(stream.read())
    return Stamp(_real(path), size, about.st_mtime_ns, header_bytes, digest.hexdigest())


def _kept(file: Path, path: Path, kind: type[Config]) -> tuple[Config, dict[str, Any]] | None:
    """The content of a packed file; None if it does not exist, is damaged, or is older than the source."""
    if (buffer := mapped(file)) is None:
        return None
    header = read_header(buffer)
    if (
        header is None
        or ImageLayout(header).size + SEAL.size != len(buffer)
        or header.stamp != _stamp(path, kind, header.stamp.header_bytes)
        or not is_intact(file)
    ):
        return None
    if not cpu_library.available():
        cpu_library.load().guard(file, buffer)
    try:
        return msgspec.json.decode(header.config, type=kind), parts_of(header, buffer)
    except msgspec.ValidationError:  # a drafter is asked for and this is a target, or the other way round
        return None


def _check_same(source: CheckedFile[Config], header: Header) -> None:
    if _stamp(source.path, type(source.config), source.data_offset) != header.stamp:
        raise ModelError(f"{source.path}: changed while it was read; try again")


def _keep(file: Path, source: CheckedFile[Config], header: Header, progress: Progress | None) -> None:
    """Write a packed file; NotKept says why that is not possible."""
    size = ImageLayout(header).size + SEAL.size
    try:
        paths.create_private(file.parent)
        clean(file.parent)
        if shutil.disk_usage(file.parent).free < size + SPARE_BYTES:
            remove(file)  # of an older source
        free = shutil.disk_usage(file.parent).free
    except (LocaldflashError, OSError) as error:
        raise NotKept(str(error)) from None
    if free < size + SPARE_BYTES:
        raise NotKept(f"{-(-(size + SPARE_BYTES) >> 20)} MiB are needed and {free >> 20} MiB free")
    unfinished = file.with_name(f"{file.stem}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with Output(unfinished) as output:
            pack(source, header, output.write, progress)
            _check_same(source, header)
            output.finish(file)
    finally:
        remove(unfinished)


def _in_memory(source: CheckedFile[Config], header: Header, progress: Progress | None) -> mmap.mmap:
    """The image of a source; OutOfMemory if there is no room for it."""
    import psutil

    size, free = ImageLayout(header).size, psutil.virtual_memory().available
    try:
        if size > free:
            raise OSError
        buffer = mmap.mmap(-1, size)
    except OSError:
        raise OutOfMemory(
            f"{source.path}: its packed weights need {size >> 20} MiB, {free >> 20} MiB of memory are free;"
            f" free some disk space in {paths.cache_folder()}, or use a smaller model"
        ) from None

    def write(offset: int, data: bytes | memoryview) -> None:
        raw = memoryview(data).cast("B")
        buffer[offset : offset + len(raw)] = raw

    pack(source, header, write, progress)
    _check_same(source, header)
    return buffer
