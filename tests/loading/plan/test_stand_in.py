"""Stand-ins for files that are still on the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.loading.plan import planner as remote
from localdflash.models.registry import remote_head
from localdflash.models.registry.hub import Unreachable
from localdflash.models.registry.pair_entry import FileSource
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import read_header
from tests.support.converted_models import case_of
from tests.support.fake_hub import FakeHub, File, hub_for_tests

NAME = "owner/name/target.gguf"
TARGET = FileSource("owner/name", "target.gguf")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_tests(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.fixture
def target(tiny_pair: Path) -> bytes:
    return (tiny_pair / "target.gguf").read_bytes()


def test_a_stand_in_has_the_header_and_the_size_and_nothing_else_is_fetched(
    hub: FakeHub, tiny_pair: Path, target: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_head, "CHUNK", 8192)
    hub.files[NAME] = File(target)
    made, original = remote.stand_in(TARGET, tmp_path), read_header(tiny_pair / "target.gguf")
    assert made.stat().st_size == len(target)
    assert read_header(made).tensors == original.tensors
    assert read_header(made).metadata == original.metadata
    spans = [span.removeprefix("bytes=").split("-") for span in hub.downloads(NAME) if span]
    ends = [int(last) + 1 for _, last in spans]
    assert [int(first) for first, _ in spans] == [0, *ends[:-1]]
    assert len(spans) == -(-original.data_offset // 8192) < len(target) // 8192


def test_a_stand_in_has_the_weights_that_the_shape_is_read_from(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_head, "CHUNK", 8192)
    model = case_of("llama 3.1").write(tmp_path / "model.gguf")
    hub.files[NAME] = File(model.read_bytes())
    made = remote.stand_in(TARGET, tmp_path)
    expected = decoder_config(read_header(model))
    assert len(set(expected.rope_factors)) > 1
    assert decoder_config(read_header(made)) == expected


def test_a_broken_header_is_refused_at_once(hub: FakeHub, target: bytes, tmp_path: Path) -> None:
    for reason, data in (("broken GGUF file", target[:5000]), ("GGUF version", b"GGUF" + b"\xff" * (16 << 20))):
        hub.files[NAME] = File(data)
        before = len(hub.downloads(NAME))
        with pytest.raises(ModelError, match=rf"owner/name/target\.gguf: {reason}"):
            remote.stand_in(TARGET, tmp_path)
    assert len(hub.downloads(NAME)) == before + 1


def test_a_hub_without_ranges_is_not_downloaded_from(hub: FakeHub, target: bytes, tmp_path: Path) -> None:
    hub.files[NAME] = File(target + bytes(8 << 20), large=False)
    with pytest.raises(Unreachable, match="does not serve ranges of files"):
        remote.stand_in(TARGET, tmp_path)
