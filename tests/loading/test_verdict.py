"""The subject of a verdict on the CUDA engine, and its file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.loading.verdict import Subject
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from tests.support.pretended_gpu import pretend

pytestmark = pytest.mark.checks_gpu


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that seems to have an RTX 4090; the patcher changes it."""
    pretend(monkeypatch)
    return monkeypatch


def test_a_verdict_holds_for_one_machine_its_libraries_and_the_options_that_choose_kernels(
    files: LocalPair, options: Options, subject: Subject, gpu: pytest.MonkeyPatch
) -> None:
    def key(**changes: Any) -> str:
        return Subject.of(files, replace(options, **changes)).place.name

    assert key() == key(context=256) == key(threads=2) == subject.place.name
    assert len({key(), key(kv="int8"), key(draft=False), key(native_fp4=True)}) == 4
    for what, value in (
        ("torch.__version__", "9.9"),
        ("triton.__version__", "9.9"),
        ("torch.cuda.get_device_name", lambda _: "RTX 5090"),
        ("localdflash.backends.cuda.identity.driver_version", lambda: "590.1"),
        ("localdflash.backends.cuda.identity.version", lambda _: "99.0"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(what, value)
            assert key() != subject.place.name, what
    gpu.setattr("localdflash.backends.cuda.gpus.Gpu.uuid", property(lambda _self: "GPU-another-card-of-its-kind"))
    assert key() == subject.place.name


def test_a_verdict_holds_for_files_of_the_same_shapes(
    files: LocalPair, options: Options, subject: Subject, tiny_pair: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"  # as a fine-tune: other numbers in the same shapes
    copy.write_bytes((tiny_pair / "target.gguf").read_bytes()[:-64] + bytes(64))
    assert Subject.of(replace(files, target=copy), options).place == subject.place
    assert Subject.of(replace(files, drafter_safetensors=None), options).place != subject.place
