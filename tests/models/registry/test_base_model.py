"""Which entry's drafter a file gets: by its base model or its name, and never for a near miss."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from localdflash.models.registry.base_model import find_drafter
from localdflash.models.registry.pair_entry import DrafterMatch
from localdflash.models.registry.registry import load_registry
from localdflash.models.weights.gguf import GGUFHeader

PAIRS = list(load_registry().pairs.values())


def header(architecture: str = "qwen3", layers: int = 36, **general: object) -> GGUFHeader:
    """A file that says this of itself; `__` stands for a dot."""
    facts: dict[str, object] = {"general.architecture": architecture, f"{architecture}.block_count": layers}
    facts |= {f"general.{key.replace('__', '.')}": value for key, value in general.items()}
    return GGUFHeader(Path("x.gguf"), 3, MappingProxyType(facts), {}, 0)


def based_on(page: str, **others: object) -> dict[str, Any]:
    return {"base_model__count": 1, "base_model__0__repo_url": f"https://huggingface.co/{page}", **others}


def found(file: GGUFHeader, called: str = "x.gguf") -> DrafterMatch | None:
    return find_drafter(file, called, PAIRS)


def drafter_of(match: DrafterMatch | None) -> str:
    assert match
    assert match.drafter
    return match.drafter.repository or ""


QWEN3_8B = "z-lab/Qwen3-8B-DFlash-b16"
BASE = "the file's base model is Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("file", "called", "why"),
    [
        (header(**based_on("qwen/qwen3-8b")), "x.gguf", "the file's base model is qwen/qwen3-8b"),
        (
            header(**based_on("Qwen/Qwen3-8B"), name="Qwen3 8B Abliterated", finetune="abliterated"),
            "x.gguf",
            "the file's base model is Qwen/Qwen3-8B",
        ),
        (
            header(base_model__count=1, base_model__0__organization="Qwen", base_model__0__name="Qwen3 8B"),
            "x.gguf",
            "the file's base model is Qwen/Qwen3-8B",
        ),
        (
            header(**based_on("Qwen/Qwen3-8B-Base"), name="Qwen3 8B", basename="Qwen3", size_label="8B"),
            "x.gguf",
            "the file's name is Qwen3 8B",
        ),
        (header(basename="Qwen3-8B", size_label="8B"), "x.gguf", "the file's name is Qwen3-8B"),
        (header(), "Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", "the file name is Qwen3-8B"),
    ],
)
def test_a_repack_of_the_same_model(file: GGUFHeader, called: str, why: str) -> None:
    match = found(file, called)
    assert drafter_of(match) == QWEN3_8B
    assert match
    assert match.why == f"drafter of qwen3-8b: {why}"


@pytest.mark.parametrize(
    ("file", "called"),
    [
(header(**based_on("Qwen/Qwen3-14B")), "Qwen3-14B-Q4_K_M.gguf"),
(header(**based_on("Qwen/Qwen3-8B-Base"), name="Qwen3 8B Base", finetune="Base"), "Qwen3-8B-Q4_K_M.gguf"),
(header(**based_on("someone/Qwen3-8B")), "x.gguf"),
(header(name="Qwen3 4B Instruct 2507", basename="Qwen3", size_label="4B", finetune="Instruct",
                version="2507"), "Qwen3-4B.gguf"),
(header(base_model__count=2, base_model__0__repo_url="https://huggingface.co/Qwen/Qwen3-8B"), "merge.gguf"),
(header(base_model__count="1", name=7, basename=["Qwen3"], size_label=True), "x.gguf"),
(header(base_model__count=1, base_model__0__repo_url="https://example.com/Qwen/Qwen3-8B"), "x.gguf"),
],
)  # fmt: skip
def test_a_near_miss_gets_none(file: GGUFHeader, called: str) -> None:
    assert found(file, called) is None


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (header(layers=28, **based_on("Qwen/Qwen3-8B")), "has 28 layers, not 36"),
        (header("qwen3moe", 36, **based_on("Qwen/Qwen3-8B")), "is qwen3moe, not qwen3"),
    ],
)
def test_a_pruned_or_another_model_of_that_name_is_refused_with_the_reason(file: GGUFHeader, said: str) -> None:
    match = found(file)
    assert match == DrafterMatch(None, f"drafter of qwen3-8b not used, though {BASE}: the file {said}")


def test_every_entry_is_found_by_its_base_model() -> None:
    """Of several entries with one base model, the first."""
    firsts = {pair.drafter.trained_for: pair for pair in reversed(PAIRS) if pair.drafter}
    for pair in firsts.values():
        if not (pair.drafter and pair.drafter.trained_for):
            continue
        match = found(header(pair.architecture or "", pair.layers or 1, **based_on(pair.drafter.trained_for)))
        if pair.backends:
            assert drafter_of(match) == pair.drafter.repository, pair.id
        else:
            assert match
            assert match.drafter is None
            assert match.why.endswith(", but no backend runs it yet"), pair.id
