"""Models whose metadata and tensor records were changed, on every backend: they run or are refused with one line.

What the checks of the header let through must not end a process, nor keep it for good; where it does all the same, the
trial in a process of its own has to find it (see `localdflash.loading.trial`).
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.loading import trial
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.weights.gguf import read_header
from tests.security.fuzzing import fuzz, long_enough
from tests.security.gguf_mutations import Pair, Parsed, build, mutated, parse
from tests.support.converted_models import VOCABULARY
from tests.support.target_models import case_of

ROOT = Path(__file__).parents[2]
BACKENDS: tuple[Runner, ...] = ("llama.cpp", "cpu", "torch", "cuda")
KINDS = ("qwen3", "drafter", "llama", "qwen3moe", "gpt-oss", "qwen35moe")


class Child:
    """See `loading_child`."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "tests.security.loading_child"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment, text=True)
        self._answer()

    def load(self, backend: str, target: Path, drafter: Path | None) -> dict[str, str]:
        """How loading the files went."""
        assert self._process.stdin
        case = {"backend": backend, "target": str(target), "drafter": str(drafter) if drafter else ""}
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, tiny_pair: Path) -> dict[str, Parsed]:
    """The files that are changed. Hugging Face's models have no vocabulary: they get the tiny pair's first tokens."""
    folder = tmp_path_factory.mktemp("bases")
    found = {"qwen3": parse((tiny_pair / "target.gguf").read_bytes())}
    found["drafter"] = parse((tiny_pair / "drafter.gguf").read_bytes())
    tokenizer = [_first(pair) for pair in found["qwen3"].pairs if pair.key.startswith("tokenizer.")]
    for kind in KINDS[2:]:
        model = parse(case_of(kind, "Q8_0").write(folder / f"{kind}.gguf", "Q8_0").read_bytes())
        others = [pair for pair in model.pairs if not pair.key.startswith("tokenizer.")]
        found[kind] = replace(model, pairs=(*others, *tokenizer))
    return found


def _first(pair: Pair) -> Pair:
    """What a pair says of the first tokens; ids of others become their last one's."""
    if pair.key.endswith("_token_id"):
        return replace(pair, items=(struct.pack("<I", VOCABULARY - 1),))
    return replace(pair, items=pair.items[:VOCABULARY])


@pytest.fixture
def folder(tmp_path: Path, tiny_pair: Path) -> Path:
    """Where targets are written, and, in `pair`, drafters beside the tiny target."""
    (tmp_path / "pair").mkdir()
    shutil.copy(tiny_pair / "target.gguf", tmp_path / "pair")
    return tmp_path


def test_the_pieces_make_the_file_again(bases: dict[str, Parsed], tmp_path: Path) -> None:
    for name, base in bases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(build(base))
        assert parse(path.read_bytes()) == base
        read_header(path)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_files_run(kind: str, bases: dict[str, Parsed], child: Child, folder: Path) -> None:
    target, drafter = _written(kind, bases[kind], folder)
    outcomes = {backend: child.load(backend, target, drafter) for backend in BACKENDS}
    ran = [backend for backend, outcome in outcomes.items() if outcome["how"] == "runs"]
    assert ran[0] == "llama.cpp", outcomes
    assert all(outcome["how"] in ("runs", "refused") for outcome in outcomes.values()), outcomes


@pytest.mark.nightly
@long_enough
def test_fuzz_loading(bases: dict[str, Parsed], child: Child, folder: Path) -> None:
    outcomes = Counter[str]()

    def one(case: tuple[str, Parsed]) -> None:
        kind, changed = case
        target, drafter = _written(kind, changed, folder)
        if refused := _refused(drafter or target):
            outcomes["refused by its header"] += 1
            assert _is_a_line(refused)
            return
        for backend in BACKENDS:
            found = child.load(backend, target, drafter)
            outcomes[f"{backend}: {found['how']}"] += 1
            if found["how"] == "refused":
                assert _is_a_line(found["said"]), found["said"]
            elif found["how"] != "runs":
                assert found["how"] in ("died", "hung"), f"{backend}: {found['said']}"
                assert backend == "llama.cpp", f"{backend}: {found}"
                files = [file for file in (target, drafter) if file]
                assert _is_caught(files, Options(str(target), backend, context=48, device="cpu")), found

    cases = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), mutated(bases[kind])))
    fuzz(cases, one, least=4)  # each loads a model four times
    print(dict(sorted(outcomes.items())))  # noqa: T201  # for `make fuzz`


def _written(kind: str, model: Parsed, folder: Path) -> tuple[Path, Path | None]:
    """The file of these pieces, as a pair."""
    drafter = folder / "pair" / "drafter.gguf" if kind == "drafter" else None
    target = folder / "pair" / "target.gguf" if drafter else folder / "target.gguf"
    (drafter or target).write_bytes(build(model))
    return target, drafter


def _is_caught(files: list[Path], options: Options) -> bool:
    """Return whether the trial finds a fault, or refuses the file before it comes to it."""
    try:
        return bool(trial.tried(files, options))
    except LocaldflashError:
        return True


def _refused(path: Path) -> str:
    """What the header pass says of a file, or ""."""
    try:
        read_header(path)
    except ModelError as error:
        return str(error)
    return ""


def _is_a_line(said: str) -> bool:
    return said.isprintable() and len(said) < 900
