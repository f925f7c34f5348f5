"""The pairs of chat and completions with their own weights: on every backend drafts do not change the text."""

from pathlib import Path

import pytest

import localdflash
from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from tests.support.smollm2 import CODE_FILE, FILE, needs_smollm2

DRAFTER = Path(localdflash.__path__[0]) / "models" / "smollm2" / "drafter.gguf"
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef add(a, b, c):\n    return a + b"
BACKENDS: tuple[Runner, ...] = ("cpu", "llama.cpp", "torch")


def written(pair: Path, backend: Runner, draft: bool) -> list[int]:
    options = Options(str(pair), backend, context=512, threads=1, draft=draft, rows="exact")
    with LoadedPair(options) as loaded:
        assert loaded.host
        assert bool(loaded.host.drafters) == draft
        request = Request(loaded.tokenizer.encode(PROMPT), 12 if backend == "torch" else 32)
        return [token for step in generate(loaded.pair, request) for token in step.tokens]


@needs_smollm2
@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_chat_s_pair_writes_the_same_with_its_drafter(backend: Runner, tmp_path: Path) -> None:
    (tmp_path / "target.gguf").symlink_to(FILE)
    (tmp_path / "drafter.gguf").symlink_to(DRAFTER)
    pair = tmp_path / "target.gguf"
    assert written(pair, backend, draft=True) == written(pair, backend, draft=False)


@pytest.mark.skipif(not CODE_FILE.is_file(), reason=f"{CODE_FILE} is not here")
@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pair_of_completions_writes_the_same_with_copies(backend: Runner) -> None:
    assert written(CODE_FILE, backend, draft=True) == written(CODE_FILE, backend, draft=False)
