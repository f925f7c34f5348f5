"""Fuzzer of model files on every backend: each file runs or is refused in one line.

If a file crashes or hangs llama.cpp, the trial load of `localdflash.loading.trial` must find it.
"""

import multiprocessing
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.loading import trial
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.weights.gguf import read_header
from tests.security.fuzzing import fuzz, long_enough
from tests.security.gguf_mutations import Pair, Parsed, build, mutated, parse
from tests.security.loading_child import load
from tests.support.converted_models import VOCABULARY
from tests.support.target_models import case_of

ROOT = Path(__file__).parents[2]
BACKENDS: tuple[Runner, ...] = ("llama.cpp", "cpu", "torch", "cuda")
KINDS = ("qwen3", "drafter", "llama", "qwen3moe", "gpt-oss", "qwen35moe")


@pytest.fixture(scope="module", autouse=True)
def _children() -> Iterator[None]:
    """Set what the server of children imports, and its environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        multiprocessing.set_forkserver_preload(["pytest", "tests.security.loading_child"])
        yield


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, tiny_pair: Path) -> dict[str, Parsed]:
    """Return files to mutate; Hugging Face's test models get the tiny pair's first tokens as vocabulary."""
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
    """Limit a metadata value to the first tokens; other ids become the last of them."""
    if pair.key.endswith("_token_id"):
        return replace(pair, items=(struct.pack("<I", VOCABULARY - 1),))
    return replace(pair, items=pair.items[:VOCABULARY])


@pytest.fixture
def folder(tmp_path: Path, tiny_pair: Path) -> Path:
    """Create a folder for targets; its folder `pair` has the tiny target, for drafters."""
    (tmp_path / "pair").mkdir()
    shutil.copy(tiny_pair / "target.gguf", tmp_path / "pair")
    return tmp_path


def test_building_a_parsed_file_restores_it(bases: dict[str, Parsed], tmp_path: Path) -> None:
    for name, base in bases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(build(base))
        assert parse(path.read_bytes()) == base
        read_header(path)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_unchanged_files_run(kind: str, bases: dict[str, Parsed], folder: Path) -> None:
    target, drafter = _written(kind, bases[kind], folder)
    outcomes = {backend: load(backend, target, drafter) for backend in BACKENDS}
    ran = [backend for backend, outcome in outcomes.items() if outcome[0] == "runs"]
    assert ran[0] == "llama.cpp", outcomes
    assert all(outcome[0] in ("runs", "refused") for outcome in outcomes.values()), outcomes


@pytest.mark.nightly
@long_enough
def test_fuzz_loading(bases: dict[str, Parsed], folder: Path) -> None:
    outcomes = Counter[str]()

    def one(case: tuple[str, Parsed]) -> None:
        kind, changed = case
        target, drafter = _written(kind, changed, folder)
        if refused := _refused(drafter or target):
            outcomes["refused by its header"] += 1
            assert _is_a_line(refused)
            return
        for backend in BACKENDS:
            outcome, message = load(backend, target, drafter)
            outcomes[f"{backend}: {outcome}"] += 1
            if outcome == "refused":
                assert _is_a_line(message), message
            elif outcome != "runs":
                assert outcome in ("died", "hung"), f"{backend}: {message}"
                assert backend == "llama.cpp", f"{backend}: {outcome} {message}"
                files = [file for file in (target, drafter) if file]
                assert _is_caught(files, Options(str(target), backend, context=48, device="cpu")), (outcome, message)

    cases = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), mutated(bases[kind])))
    fuzz(cases, one, least=4)  # each loads a model four times
    print(dict(sorted(outcomes.items())))  # noqa: T201  # for `make fuzz`


def _written(kind: str, model: Parsed, folder: Path) -> tuple[Path, Path | None]:
    """Write the model; return the paths of target and drafter."""
    drafter = folder / "pair" / "drafter.gguf" if kind == "drafter" else None
    target = folder / "pair" / "target.gguf" if drafter else folder / "target.gguf"
    (drafter or target).write_bytes(build(model))
    return target, drafter


def _is_caught(files: list[Path], options: Options) -> bool:
    """Return whether the trial finds a fault, or refuses the file before it comes to it."""
    try:
        return bool(trial.try_files(files, options))
    except LocaldflashError:
        return True


def _refused(path: Path) -> str:
    """Return the error of the header check, or ""."""
    try:
        read_header(path)
    except ModelError as error:
        return str(error)
    return ""


def _is_a_line(message: str) -> bool:
    return message.isprintable() and len(message) < 900
