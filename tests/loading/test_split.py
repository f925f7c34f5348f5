"""Targets and drafters split into parts: every backend generates the same text as from one file."""

import shutil
from pathlib import Path

import pytest

from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.weights.gguf import read_header
from tests.support.split_files import split_file

BACKENDS: tuple[Runner, ...] = ("cpu", "llama.cpp", "torch")
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


def written(path: Path, backend: Runner) -> tuple[list[int], bool]:
    """Return greedy tokens, and whether the pair has a drafter."""
    options = Options(str(path), backend, context=128, threads=1, rows="fast")
    with LoadedPair(options) as loaded:
        tokens = [token for step in generate(loaded.pair, Request(PROMPT, 16)) for token in step.tokens]
        return tokens, bool(loaded.files.drafter_safetensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_reads_all_parts(backend: Runner, tiny_pair: Path, tmp_path: Path) -> None:
    first = split_file(tiny_pair / "target.gguf", tmp_path, "target", 3, empty_first=True)
    for name in ("drafter.safetensors", "config.json"):
        shutil.copy(tiny_pair / name, tmp_path / name)
    assert written(first, backend) == (written(tiny_pair / "target.gguf", backend)[0], True)


def test_a_change_of_any_part_invalidates_packed_weights(tiny_pair: Path, tmp_path: Path) -> None:
    first = split_file(tiny_pair / "target.gguf", tmp_path, "m", 2)
    part = first.with_name("m-00002-of-00002.gguf")  # the path of any part stands for the model
    before = written(part, "cpu")[0]
    assert before == written(tiny_pair / "target.gguf", "cpu")[0]
    data = bytearray(part.read_bytes())
    info = next(info for info in read_header(first).tensors.values() if info.part == 1 and len(info.shape) == 2)
    there, block = slice(info.offset, info.offset + info.nbytes), info.ggml_type.block_bytes
    data[there] = data[there][block:] + data[there][:block]  # each block in its neighbour's place
    part.write_bytes(data)
    assert written(first, "cpu")[0] != before
