"""The vocabulary and the format of the embedded pair, without its weights."""

import pytest

from localdflash.code.fim.encoder import Encoder
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text.fim_formats import FimFormat, detect
from localdflash.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(local_files(load_registry().resolve("embedded")).target)


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> Encoder:
    return Encoder(tokenizer)


@pytest.fixture(scope="session")
def fim(tokenizer: Tokenizer) -> FimFormat:
    return detect(tokenizer)
