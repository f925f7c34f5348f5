"""Each backend loads what it needs and no more; identity holds across them by other tests."""

import subprocess
import sys

import pytest

RUN = "import sys; {body}; print(sorted(m for m in ('torch', 'llama_cpp') if m in sys.modules))"


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        (
            "from localdflash.loading import LoadedPair, Options; LoadedPair(Options(threads=1)).close()",
            "['llama_cpp']",
        ),
        ("import localdflash.targets.torch_target, localdflash.drafters.dflash_files", "['torch']"),
        ("import localdflash.cli, localdflash.registry, localdflash.engine.generate", "[]"),
    ],
)
def test_a_backend_does_not_load_the_other(body: str, loaded: str) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(body=body)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == loaded
