"""Tiny pair for checks of the CUDA engine, and the subject of its verdict."""

from pathlib import Path

import pytest

from localdflash.loading.proof import Subject
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files


@pytest.fixture
def options(tiny_pair: Path) -> Options:
    return Options(str(tiny_pair / "target.gguf"), "auto", drafter=str(tiny_pair / "drafter.gguf"), threads=1)


@pytest.fixture
def files(options: Options) -> LocalPair:
    return local_files(load_registry().resolve(options.pair, options.drafter))


@pytest.fixture
def subject(files: LocalPair, options: Options) -> Subject:
    return Subject.of(files, options)
