"""Targets merged here from a base model and an adapter: the pinned bytes, or no file."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_export import TRAINED, write_adapter
from localdflash.models.registry import fetching, records
from localdflash.models.registry.pair_entry import FileSource, MergeSource, PairEntry, TargetSource
from localdflash.models.registry.registry import describe_source, local_files, missing_files
from localdflash.models.weights import low_rank
from tests.support.converted_models import case_of
from tests.support.reports import RecordedReport


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Write a base, an adapter without effect, and the merged model."""
    folder = tmp_path_factory.mktemp("made")
    base = case_of("llama 3.1").write(folder / "base.gguf")
    write_adapter(folder / "adapter.safetensors", Adapter(load_decoder(base), 2, TRAINED, torch.float32), base)
    low_rank.merge(base, folder / "adapter.safetensors", folder / "merged.gguf")
    return base, folder / "adapter.safetensors", folder / "merged.gguf"


@pytest.fixture
def pair(made: tuple[Path, Path, Path], home: Path) -> PairEntry:
    base, adapter, merged = made
    target = TargetSource(
        None,
        "merged.Q8_0.gguf",
        low_rank.sha256_of(merged),
        size=merged.stat().st_size,
        adapted=MergeSource(FileSource(None, str(base)), str(adapter)),
    )
    return PairEntry("taught", "A taught pair", target, None, home, ("cpu",))


def test_pull_merges_the_target_once(pair: PairEntry, made: tuple[Path, Path, Path]) -> None:
    (missing,) = missing_files(pair)
    assert "merge" in describe_source(missing)
    report = RecordedReport()
    (fetched,) = fetching.pull(pair, report)
    assert fetched.fetched
    assert fetched.path.read_bytes() == made[2].read_bytes()
    assert any("base.gguf and adapter.safetensors" in line for line in report.lines)
    assert local_files(pair).target == fetched.path
    (again,) = fetching.pull(pair, RecordedReport())
    assert not again.fetched
    assert [path.suffix for path in fetched.path.parent.iterdir() if "partial" in path.name] == []


def test_unexpected_bytes_are_set_aside(pair: PairEntry) -> None:
    pair = replace(pair, target=replace(pair.target, sha256="0" * 64))
    with pytest.raises(ModelError, match="expected 0000"):
        fetching.pull(pair, RecordedReport())
    assert not pair.target.path.exists()
    assert pair.target.path.with_name("merged.Q8_0.gguf.mismatch").exists()
    assert records.read(pair.target.path) is None


def test_a_full_disk_leaves_nothing(pair: PairEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(base: Path, adapter: Path, path: Path) -> None:
        path.with_suffix(".part").write_bytes(b"GGUF")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(low_rank, "merge", fill_up)
    with pytest.raises(LocaldflashError, match="free some space and pull again"):
        fetching.pull(pair, RecordedReport())
    assert [path.name for path in pair.target.path.parent.iterdir()] == [".merged.Q8_0.gguf.lock"]
