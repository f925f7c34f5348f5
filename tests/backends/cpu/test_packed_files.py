"""The life of a packed file: written once, mapped ever after, and packed again whenever it is not what it should be."""

import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from localdflash.backends.cpu import image, packed, packed_files, packing
from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.base.errors import ModelError, OutOfMemory
from tests.backends.cpu.packed_models import dequantized, target_tensors, unpacked, write

FASTER: dict[str, Any] = {"rope.freq_base": 2e4}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "model.gguf", target_tensors())


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "cpu"


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources packed in this test, in order."""
    seen: list[Path] = []
    pack = packing.pack

    def noted(source: Any, *arguments: Any) -> None:
        seen.append(source.path)
        pack(source, *arguments)

    monkeypatch.setattr(packed, "pack", noted)
    return seen


def is_right(path: Path, seed: int = 0, notice: str = "") -> bool:
    """Whether opening a model gives the weights of `target_tensors(seed=seed)`."""
    opened, tensors = open_target(path), target_tensors(seed=seed)
    assert notice in opened.notice
    assert bool(notice) == bool(opened.notice)
    wanted = {"token_embd": opened.embedding, "blk.1.ffn_down": opened.layers[1].down}
    return all(
        np.array_equal(unpacked(ours)[0], dequantized(*tensors[f"{theirs}.weight"])) for theirs, ours in wanted.items()
    ) and np.array_equal(opened.norm, dequantized(*tensors["output_norm.weight"]))


def the_only(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_a_model_is_packed_once(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    written = the_only(folder).stat()
    assert is_right(model)
    assert packings == [model]
    assert the_only(folder).stat() == written
    assert written.st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_and_a_relative_path_are_the_same_model(
    model: Path, packings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    monkeypatch.chdir(model.parent)
    assert is_right(model)
    assert is_right(link)
    assert is_right(Path("model.gguf"))
    assert packings == [model]


def test_progress_rises_to_the_whole(model: Path, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    open_target(model, lambda done, size: seen.append((done, size)))
    done = [part for part, _ in seen]
    assert done == sorted(done)
    assert {size for _, size in seen} == {done[-1]}
    assert 0.9 < done[-1] / the_only(folder).stat().st_size < 1
    seen.clear()
    open_target(model, lambda done, size: seen.append((done, size)))
    assert not seen


def test_a_new_source_replaces_the_old_one(model: Path, folder: Path) -> None:
    assert is_right(model)
    write(model, target_tensors(seed=1))
    assert is_right(model, seed=1)
    assert the_only(folder)


def test_a_source_of_the_same_size_and_time_is_known_by_its_header(model: Path, packings: list[Path]) -> None:
    before = model.stat()
    assert is_right(model)
    write(model, target_tensors(), "qwen3", **FASTER)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    assert open_target(model).config.rope_theta == 2e4
    assert len(packings) == 2


def test_a_drafter_is_packed_again_when_its_configuration_changes(tiny_pair: Path, tmp_path: Path) -> None:
    for name in ("drafter.safetensors", "config.json"):
        shutil.copy(tiny_pair / name, tmp_path)
    config = tmp_path / "config.json"
    block = open_drafter(tmp_path / "drafter.safetensors").config.block_size
    text = config.read_text()
    config.write_text(text.replace(f'"block_size": {block}', f'"block_size": {block - 1}'))
    assert text != config.read_text()
    assert open_drafter(tmp_path / "drafter.safetensors").config.block_size == block - 1


def test_a_file_cut_anywhere_is_packed_again(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    file = the_only(folder)
    size = file.stat().st_size
    for count, at in enumerate((0, 1, 8, 12, 35, 36, 37, 500, 4096, size // 2, size - 4096, size - 1, size + 1), 2):
        os.truncate(file, at)
        assert is_right(model)
        assert len(packings) == count
        assert file.stat().st_size == size


def test_any_bit_of_the_header_counts(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    file = the_only(folder)
    whole = file.read_bytes()
    header = image.read_header(whole)
    assert header is not None
    for at in (*range(0, image.PREFIX.size), *range(image.PREFIX.size, len(header.encoded()), 97)):
        broken = bytearray(whole)
        broken[at] ^= 1 << (at % 8)
        assert image.read_header(bytes(broken)) is None, at
    file.write_bytes(broken)
    assert is_right(model)
    assert len(packings) == 2
    assert file.read_bytes()[: -packed_files.SEAL.size] == whole[: -packed_files.SEAL.size]


def test_any_bit_of_the_weights_counts(model: Path, folder: Path, packings: list[Path]) -> None:
    assert is_right(model)
    file = the_only(folder)
    whole = file.read_bytes()
    header = image.read_header(whole)
    assert header is not None
    for count, at in enumerate(range(len(header.encoded()), len(whole), len(whole) // 7), 2):
        with file.open("r+b") as stream:
            stream.seek(at)
            stream.write(bytes([whole[at] ^ 16]))
        assert is_right(model)
        assert len(packings) == count, at


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was read through in this test."""
    seen: list[int] = []
    digest = packed_files._digest

    def noted(stream: Any, size: int) -> bytes:
        seen.append(size)
        return digest(stream, size)

    monkeypatch.setattr(packed_files, "_digest", noted)
    return seen


def test_a_file_that_was_copied_or_touched_is_read_once(
    model: Path, folder: Path, packings: list[Path], readings: list[int]
) -> None:
    assert is_right(model)
    file = the_only(folder)
    copy = shutil.copy(file, folder.parent / "copy")
    os.replace(copy, file)
    for count in (2, 3):
        for _ in range(2):
            assert is_right(model)
            assert len(readings) == count
        os.utime(file)
    assert packings == [model]


def test_one_that_cannot_be_sealed_again_is_used(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_right(model)
    os.utime(the_only(folder))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert is_right(model)


@pytest.mark.parametrize("content", [b"", b"LDFPACK\n", b"LDFPACK\n" + bytes(64), b"GGUF" + bytes(4096)])
def test_a_foreign_file_is_replaced(model: Path, folder: Path, content: bytes) -> None:
    assert is_right(model)
    the_only(folder).write_bytes(content)
    assert is_right(model)


def test_a_file_of_another_version_is_replaced(
    model: Path, packings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(image, "VERSION", image.VERSION + 1)
        assert is_right(model)
    assert is_right(model)
    assert len(packings) == 2


def test_a_file_of_another_source_is_replaced(model: Path, folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.gguf", target_tensors(seed=1))
    assert is_right(other, seed=1)
    foreign = the_only(folder)
    assert is_right(model)
    (ours,) = set(folder.iterdir()) - {foreign}
    shutil.copy(foreign, ours)
    assert is_right(model)


def test_a_packed_target_is_still_no_drafter(tiny_pair: Path) -> None:
    open_target(tiny_pair / "target.gguf")
    with pytest.raises(ModelError, match="no DFlash drafter"):
        open_drafter(tiny_pair / "target.gguf")
    open_drafter(tiny_pair / "drafter.gguf")
    with pytest.raises(ModelError, match="'dflash'"):
        open_target(tiny_pair / "drafter.gguf")


@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_full_disk_costs_no_more_than_a_notice(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    left, pwrite = [after], os.pwrite

    def full(*arguments: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    assert is_right(model, notice="No space left on device")
    assert not list(folder.iterdir())


def test_short_writes_are_gone_on_with(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data[:5000]), at))
    assert is_right(model)
    assert is_right(model)


def test_what_does_not_fit_is_not_begun(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int = packed.SPARE_BYTES + 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage())
    assert is_right(model, notice="258 MiB are needed and 256 MiB free")
    assert not list(folder.iterdir())


def test_an_old_file_makes_room_for_the_new_one(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    assert is_right(model)
    write(model, target_tensors(seed=1))
    monkeypatch.setattr(shutil, "disk_usage", lambda at: Usage(0 if list(at.iterdir()) else 1 << 40))
    assert is_right(model, seed=1)
    assert the_only(folder)


@pytest.mark.parametrize("name", ["open", "fsync"])
def test_a_folder_that_may_not_be_written_costs_no_more_than_a_notice(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = getattr(os, name)

    def refuse(*arguments: Any, **options: Any) -> Any:
        if name == "fsync" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, refuse)
    assert is_right(model, notice="Read-only file system")
    assert not list(folder.iterdir())


def test_no_folder_costs_no_more_than_a_notice(model: Path, home: Path) -> None:
    home.mkdir()
    (home / "cache").write_text("in the way")
    assert is_right(model, notice=str(home / "cache"))


def test_no_room_anywhere_is_one_line(model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory(NamedTuple):
        available: int = 1000

    home.mkdir()
    (home / "cache").write_text("in the way")
    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(OutOfMemory, match="0 MiB of memory are free"):
        open_target(model)


def test_a_source_that_changes_meanwhile_is_refused(model: Path, folder: Path) -> None:
    def touch(done: int, size: int) -> None:
        os.utime(model, ns=(1, done))

    with pytest.raises(ModelError, match="changed while it was read"):
        open_target(model, touch)
    assert not list(folder.iterdir())


def test_a_source_that_shrinks_meanwhile_is_refused(model: Path, folder: Path) -> None:
    with pytest.raises(ModelError, match="became shorter"):
        open_target(model, lambda *_: os.truncate(model, 100_000))
    assert not list(folder.iterdir())


def test_an_interrupt_leaves_nothing_behind(model: Path, folder: Path) -> None:
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_target(model, interrupt)
    assert not list(folder.iterdir())


def test_leftovers_and_files_of_vanished_sources_go(model: Path, folder: Path, tmp_path: Path) -> None:
    vanished = write(tmp_path / "vanished.gguf", target_tensors(seed=1))
    open_target(vanished)
    vanished.unlink()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    alive = folder / f"abc.{os.getpid()}-00"
    for path in (alive, folder / f"abc.{ended.pid}-00", folder / "foreign.packed"):
        path.write_bytes(b"")
    assert is_right(model)
    left = set(folder.iterdir())
    assert alive in left
    assert len(left) == 2


def test_a_missing_source_is_one_line_even_when_packed(model: Path) -> None:
    open_target(model)
    model.unlink()
    with pytest.raises(ModelError, match="cannot open"):
        open_target(model)


def test_an_open_model_outlives_its_file(model: Path, folder: Path) -> None:
    opened = open_target(model)
    write(model, target_tensors(seed=1))
    open_target(model)
    for file in folder.iterdir():
        file.unlink()
    wanted = dequantized(*target_tensors()["token_embd.weight"])
    np.testing.assert_array_equal(unpacked(opened.embedding)[0], wanted)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="a system without huge pages")
def test_weights_are_asked_for_in_huge_pages(model: Path, folder: Path) -> None:
    opened = open_target(model)
    about = Path("/proc/self/smaps").read_text().partition(str(the_only(folder)))[2]
    flags = next(line for line in about.splitlines() if line.startswith("VmFlags:"))
    assert "hg" in flags.split() or not Path("/sys/kernel/mm/transparent_hugepage").exists()
    assert opened.embedding.codes.any()


def test_processes_may_pack_at_once(model: Path, folder: Path) -> None:
    code = (
        "from pathlib import Path; from localdflash.backends.cpu.binding import open_target;"
        f"print(open_target(Path({str(model)!r})).notice, end='')"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[0] for process in processes] == [b""] * 4
    assert [process.returncode for process in processes] == [0] * 4
    assert the_only(folder)
    assert is_right(model)


def test_a_file_cut_while_it_is_in_use_is_one_line(model: Path, folder: Path, cpu_engine: None) -> None:
    open_target(model)
    program = (
        "import os, sys; from pathlib import Path; from localdflash.backends.cpu.binding import open_target;"
        "model = open_target(Path(sys.argv[1])); os.truncate(sys.argv[2], 100); print(model.embedding.codes.sum())"
    )
    command = [sys.executable, "-P", "-c", program, str(model), str(the_only(folder))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ModelError.exit_code
    assert done.stderr == (
        f"localdflash: {the_only(folder)}: became shorter while it was in use: start again, and it is packed anew\n"
    )
    assert is_right(model)


def test_other_faults_end_a_process_as_ever(model: Path, tmp_path: Path, cpu_engine: None) -> None:
    (tmp_path / "other").write_bytes(bytes(1 << 16))
    program = (
        "import mmap, os, sys; from pathlib import Path; from localdflash.backends.cpu.binding import open_target;"
        "model = open_target(Path(sys.argv[1])); file = open(sys.argv[2], 'r+b');"
        "memory = mmap.mmap(file.fileno(), 0); os.truncate(sys.argv[2], 0); memory[100]"
    )
    command = [sys.executable, "-P", "-c", program, str(model), str(tmp_path / "other")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGBUS


def test_a_drafter_in_four_bits_is_packed_beside_the_other(tiny_pair: Path, folder: Path) -> None:
    path = tiny_pair / "drafter.safetensors"
    for _ in range(2):
        fine, coarse = open_drafter(path), open_drafter(path, bits=4)
        assert coarse.nbytes < 0.6 * fine.nbytes
    assert len({*folder.iterdir()}) == 2
