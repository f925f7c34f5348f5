"""Packed files: written once, mapped afterwards, and packed again if they are invalid."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.cpu import packed_file
from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.packing import (
    KINDS,
    MatrixShape,
    PackedMatrix,
    _round_to_q4_0,
    _round_to_q8_0,
    pack_rows,
    select_rows,
)
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.weights.ggml_types import GGMLType
from tests.backends.cpu.packed_models import QUANTIZED, SCALES, dequantized, holds, target_tensors, write
from tests.support.gguf_files import random_blocks


class Usage(NamedTuple):
    free: int


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", target_tensors())


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "cpu"


def record_calls(monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[..., Any]) -> list[Any]:
    """Record `what(*arguments)` of each call of a function of `packed_file`."""
    seen: list[Any] = []
    called = getattr(packed_file, name)

    def recording(*arguments: Any) -> Any:
        seen.append(what(*arguments))
        return called(*arguments)

    monkeypatch.setattr(packed_file, name, recording)
    return seen


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the sources packed in this test."""
    return record_calls(monkeypatch, "pack", lambda source, *_: source.path)


def is_right(path: Path, seed: int = 0, notice: str = "") -> bool:
    """Return whether opening a model gives the weights of `target_tensors(seed=seed)`."""
    opened, tensors = open_target(path), target_tensors(seed=seed)
    assert notice in opened.notice
    assert bool(notice) == bool(opened.notice)
    expected = {"token_embd": opened.parts["embedding"], "blk.1.ffn_down": opened.parts["layers.1.down"]}
    return all(holds(ours, *tensors[f"{theirs}.weight"]) for theirs, ours in expected.items()) and np.array_equal(
        opened.parts["norm"], dequantized(*tensors["output_norm.weight"])
    )


def the_only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_model_is_packed_once(
    model: Path, folder: Path, packings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    monkeypatch.chdir(model.parent)
    open_target(model, lambda done, size: seen.append((done, size)))
    written, done = the_only(folder).stat(), [part for part, _ in seen]
    for path in (model, link, Path("model.gguf")):
        assert is_right(path)
    open_target(model, lambda *_: pytest.fail("packed again"))
    assert packings == [model]
    assert the_only(folder).stat() == written
    assert written.st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert done == sorted(done)
    assert {size for _, size in seen} == {done[-1]}
    assert 0.9 < done[-1] / written.st_size < 1


def test_the_format_on_disk_is_stable(model: Path, folder: Path) -> None:
    """Packed files of released versions stay valid."""
    open_target(model)
    file = the_only(folder)
    raw = file.read_bytes()
    assert (len(file.stem), file.suffix) == (32, ".packed")
    assert raw[:12] == b"LDFPACK\n\2\0\0\0"
    header = packed_file.read_header(raw)
    assert header is not None
    start = raw[packed_file.PREFIX.size : len(header.encoded())]
    assert b'"stamp":{"path":' in start
    assert b'{"name":"layers.0.query","matrix":{"kind":0,"n":128,"k":256,"experts":1},"shape":[]}' in start


def test_a_changed_source_is_packed_again(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    write(model, target_tensors(seed=1))
    assert is_right(model, seed=1)
    before = model.stat()
    write(model, target_tensors(), "qwen3", **{"rope.freq_base": 2e4})
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    assert open_target(model).config.rope_theta == 2e4
    assert len(packings) == 3
    assert the_only(folder)


def test_truncated_file_is_packed_again(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    file = the_only(folder)
    size = file.stat().st_size
    for count, at in enumerate((0, 1, 35, 36, 500, size // 2, size - 1, size + 1), 2):
        os.truncate(file, at)
        assert is_right(model)
        assert len(packings) == count
        assert file.stat().st_size == size


def test_any_flipped_bit_is_detected(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    file = the_only(folder)
    whole = file.read_bytes()
    header = packed_file.read_header(whole)
    assert header is not None
    end = len(header.encoded())
    for at in (*range(packed_file.PREFIX.size), *range(packed_file.PREFIX.size, end, 97)):
        broken = bytearray(whole)
        broken[at] ^= 1 << (at % 8)
        assert packed_file.read_header(bytes(broken)) is None, at
    for count, at in enumerate((40, *range(end, len(whole), len(whole) // 5)), 2):
        with file.open("r+b") as stream:
            stream.seek(at)
            stream.write(bytes([whole[at] ^ 16]))
        assert is_right(model)
        assert len(packings) == count, at
        assert file.read_bytes()[: -packed_file.SEAL.size] == whole[: -packed_file.SEAL.size]


def test_copied_or_touched_file_is_verified_once(
    model: Path, folder: Path, packings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = record_calls(monkeypatch, "_digest", lambda _, size: size)
    assert is_right(model)
    file = the_only(folder)
    os.replace(shutil.copy(file, folder.parent / "copy"), file)
    for count in (2, 3):
        for _ in range(2):
            assert is_right(model)
            assert len(readings) == count
        os.utime(file)

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert is_right(model)  # though it cannot be sealed again
    assert packings == [model]


@pytest.mark.parametrize("content", [b"LDFPACK\n" + bytes(64), "other version", "other model"])
def test_foreign_file_under_the_packed_name_is_replaced(
    model: Path, folder: Path, tmp_path: Path, content: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        if content == "other version":
            other.setattr(packed_file, "VERSION", packed_file.VERSION + 1)
        assert is_right(model)
    ours = the_only(folder)
    if content == "other model":
        assert is_right(write(tmp_path / "other.gguf", target_tensors(seed=1)), seed=1)
        (theirs,) = set(folder.iterdir()) - {ours}
        shutil.copy(theirs, ours)
    elif isinstance(content, bytes):
        ours.write_bytes(content)
    assert is_right(model)


@pytest.mark.parametrize(("name", "after"), [("pwrite", 0), ("pwrite", 20), ("open", 0), ("fsync", 0)])
def test_a_failing_disk_only_causes_a_notice(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    real, left = getattr(os, name), [after]

    def fail(*arguments: Any, **options: Any) -> Any:
        if name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail)
    assert is_right(model, notice="No space left on device")
    assert not list(folder.iterdir())


def test_disk_space_is_checked_and_an_old_file_evicted(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: Usage(packed_file.SPARE_BYTES + 1000))
        assert is_right(model, notice="needs 258 MiB, 256 MiB are free")
    assert not list(folder.iterdir())
    assert is_right(model)
    write(model, target_tensors(seed=1))
    monkeypatch.setattr(shutil, "disk_usage", lambda at: Usage(0 if list(at.iterdir()) else 1 << 40))
    assert is_right(model, seed=1)
    assert the_only(folder)


def test_missing_folder_or_memory_gives_one_line_error(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "cache").write_text("in the way")
    assert is_right(model, notice=str(home / "cache"))
    monkeypatch.setattr(packed_file, "system_budget", lambda: MemoryBudget(1000, 0, "memory"))
    with pytest.raises(OutOfMemory, match=r"free memory .0 MiB."):
        open_target(model)


def test_interrupt_or_changed_source_leaves_no_files(model: Path, folder: Path) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_target(model, interrupt)
    with pytest.raises(ModelError, match="changed while it was read"):
        open_target(model, lambda done, _: os.utime(model, ns=(1, done)))
    with pytest.raises(ModelError, match="became shorter"):
        open_target(model, lambda *_: os.truncate(model, 100_000))
    assert not list(folder.iterdir())


OPEN = "import mmap, os, sys; from pathlib import Path; from localdflash.backends.cpu.binding import open_target;"


def test_two_processes_may_pack_at_once(model: Path, folder: Path) -> None:
    command = [sys.executable, "-c", f"{OPEN} print(open_target(Path(sys.argv[1])).notice, end='')", str(model)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0] for process in processes] == [b""] * 2
    assert [process.returncode for process in processes] == [0] * 2
    assert the_only(folder)
    assert is_right(model)


def test_file_truncated_in_use_gives_one_line_error(model: Path, folder: Path, cpu_engine: None) -> None:
    open_target(model)
    program = f"{OPEN} m = open_target(Path(sys.argv[1])); os.truncate(sys.argv[2], 100); print(m.head.codes.sum())"
    command = [sys.executable, "-P", "-c", program, str(model), str(the_only(folder))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ModelError.exit_code
    assert done.stderr == (
        f"localdflash: {the_only(folder)}: became shorter while it was in use; restart to pack it again\n"
    )
    assert is_right(model)


def test_other_faults_end_the_process_by_signal(model: Path, tmp_path: Path, cpu_engine: None) -> None:
    (tmp_path / "other").write_bytes(bytes(1 << 16))
    program = (
        f"{OPEN} model = open_target(Path(sys.argv[1])); file = open(sys.argv[2], 'r+b');"
        "memory = mmap.mmap(file.fileno(), 0); os.truncate(sys.argv[2], 0); memory[100]"
    )
    command = [sys.executable, "-P", "-c", program, str(model), str(tmp_path / "other")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGBUS


@settings(max_examples=40, deadline=None)
@given(
    becomes=st.sampled_from([GGMLType.Q8_0, GGMLType.Q4_0]),
    size=st.sampled_from([1e-30, 1e-6, 0.02, 1.0, 900.0]),
    seed=st.integers(0, 999),
)
def test_float_weights_are_rounded_as_gguf_does(becomes: GGMLType, size: float, seed: int) -> None:
    values = (np.random.default_rng(seed).standard_normal((32, 128)) * size).astype(np.float32)
    values[0, :32] = 0
    ours = (_round_to_q8_0 if becomes == GGMLType.Q8_0 else _round_to_q4_0)(values)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(becomes)))
    np.testing.assert_array_equal(dequantized(becomes, ours), dequantized(becomes, theirs))
    for packed, expected in zip(
        pack_rows(values.view(np.uint8), GGMLType.F32, becomes == GGMLType.Q4_0), pack_rows(ours, becomes), strict=True
    ):
        np.testing.assert_array_equal(packed, expected)


def test_scales_that_are_not_finite_are_refused() -> None:
    for kind in QUANTIZED:
        for start in SCALES[kind]:
            raw = random_blocks(np.random.default_rng(0), kind.name, (20, 512))
            scale = raw[19, raw.shape[1] - kind.block_bytes + start :][:2]  # of the last block
            scale[:] = np.array([-np.inf if start else np.nan], np.float16).view(np.uint8)
            with pytest.raises(ModelError, match="finite"):
                pack_rows(raw, kind)
    raw = random_blocks(np.random.default_rng(0), "MXFP4", (20, 512))
    raw[19, -17] = 254
    pack_rows(raw, GGMLType.MXFP4)
    raw[19, -17] = 255
    with pytest.raises(ModelError, match="finite"):
        pack_rows(raw, GGMLType.MXFP4)


def test_selected_rows_are_those_of_the_matrix() -> None:
    random, count = np.random.default_rng(1), 48
    for kind in QUANTIZED:
        raw = random_blocks(random, kind.name, (70, 512))
        whole = PackedMatrix(KINDS[kind], 70, 512, 1, *(array[np.newaxis] for array in pack_rows(raw, kind)))
        ids = np.sort(random.permutation(70)[:count]).astype(np.int32)
        short = select_rows(whole, ids)
        assert (short.kind, short.n, short.k) == (whole.kind, count, 512)
        assert holds(short, kind, raw[ids])
        arrays = [array for array in (short.codes, short.scales, short.supers) if array is not None]
        for array, (dtype, shape) in zip(arrays, MatrixShape(whole.kind, count, 512).arrays, strict=True):
            assert (array.dtype, array.shape) == (dtype, shape)
            assert array.flags.c_contiguous
            assert array.ctypes.data % 64 == 0
