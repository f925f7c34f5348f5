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
needs_code = pytest.mark.skipif(not CODE_FILE.is_file(), reason=f"{CODE_FILE} is not here")


def written(pair: Path, backend: Runner, draft: bool) -> list[int]:
    options = Options(str(pair), backend, context=512, threads=1, draft=draft, rows="exact")
    with LoadedPair(options) as loaded:
        assert loaded.host_pair
        assert bool(loaded.host_pair.drafters) == draft
        request = Request(loaded.tokenizer.encode(PROMPT), 12 if backend == "torch" else 32)
        return [token for step in generate(loaded.pair, request) for token in step.tokens]


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pair", [pytest.param("chat", marks=needs_smollm2), pytest.param("code", marks=needs_code)])
def test_drafts_do_not_change_the_text(pair: str, backend: Runner, tmp_path: Path) -> None:
    file = CODE_FILE
    if pair == "chat":
        file = tmp_path / "target.gguf"
        file.symlink_to(FILE)
        (tmp_path / "drafter.gguf").symlink_to(DRAFTER)
    assert written(file, backend, draft=True) == written(file, backend, draft=False)
