"""The tests that ran each architecture and backend, and the table of docs/models.md, which this program writes."""

from collections.abc import Iterator
from pathlib import Path

from localdflash.models.backend_names import Runner
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import MODELS_FOLDER, shipped_file
from localdflash.models.registry.registry_file import read_pairs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- what ran: written by tests/support/what_ran.py -->", "<!-- end of what ran -->"
BACKENDS: tuple[Runner, ...] = ("cpu", "llama.cpp", "torch", "cuda")
PARTS = ("cuda",)  # backends tested without their device: references in place of kernels

# The test that ran a whole model of an architecture with random weights.
_REFERENCE = "tests/backends/reference/test_gguf_decoder.py::test_logits_and_hidden_states_are_those_of_hugging_face"
_CPU = "tests/backends/cpu/test_hugging_face.py::test_dense_models_and_mixtures"
_CUDA = "tests/backends/cuda/test_pair.py::test_logits_are_those_of_hugging_face"
_HYBRID = "tests/backends/cpu/test_hugging_face.py::test_qwen35"
_LLAMA_CPP = "tests/backends/llamacpp/test_architectures.py::test_logits_and_taps_are_those_of_hugging_face"
TARGETS: dict[str, dict[Runner, str]] = {
    "qwen3": {
        "cpu": "tests/backends/cpu/test_target.py::test_rounded_activations_are_near_float32",
        "llama.cpp": "tests/backends/llamacpp/test_target.py::test_taps_and_logits_agree_with_the_float32_decoder",
        "torch": _REFERENCE,
        "cuda": "tests/backends/cuda/test_pair.py::test_proposals_are_those_of_the_torch_drafter",
    },
    "qwen3moe": {"cpu": _CPU, "llama.cpp": _LLAMA_CPP, "torch": _REFERENCE, "cuda": _CUDA},
    "llama": {"cpu": _CPU, "llama.cpp": _LLAMA_CPP, "torch": _REFERENCE, "cuda": _CUDA},
    "qwen2": {"cpu": _CPU, "llama.cpp": _LLAMA_CPP, "torch": _REFERENCE, "cuda": _CUDA},
    "qwen35": {"cpu": _HYBRID, "llama.cpp": _LLAMA_CPP},
    "qwen35moe": {"cpu": _HYBRID, "llama.cpp": _LLAMA_CPP},
    "gpt-oss": {"cpu": "tests/backends/cpu/test_hugging_face.py::test_gpt_oss", "llama.cpp": _LLAMA_CPP},
    **{name: {"llama.cpp": _LLAMA_CPP} for name in ("gemma4", "qwen3next", "mellum", "laguna", "lfm2", "lfm2moe")},
}
# The test that ran a pair with its own weights.
_SMOLLM2 = "tests/loading/test_smollm2.py::test_drafts_do_not_change_the_text"
_EMBEDDED = "tests/models/test_embedded.py::test_drafting_does_not_change_the_text"
_PARTS_OF_SMOLLM2 = "tests/backends/cuda/test_smollm2.py::test_logits_are_those_of_the_torch_reference"
OWN_WEIGHTS: dict[str, dict[Runner, str]] = {
    "embedded": {"cpu": _EMBEDDED, "llama.cpp": _EMBEDDED, "torch": _EMBEDDED, "cuda": TARGETS["qwen3"]["cuda"]},
    "smollm2-135m": {"cpu": _SMOLLM2, "llama.cpp": _SMOLLM2, "torch": _SMOLLM2, "cuda": _PARTS_OF_SMOLLM2},
    "smollm2-135m-code": {"cpu": _SMOLLM2, "llama.cpp": _SMOLLM2, "torch": _SMOLLM2, "cuda": _PARTS_OF_SMOLLM2},
}
# The test that ran drafters of a kind with random weights; of some architectures, over a target of theirs.
_SAME = "tests/models/memory/test_same_proposals.py::test_the_same_tokens"
_FAMILIES = "tests/loading/test_families.py::test_a_pair_writes_the_same_with_its_drafter"
DRAFTERS: dict[str, dict[Runner, str]] = {
    "dflash": {
        "cpu": _SAME,
        "llama.cpp": _SAME,
        "torch": "tests/backends/reference/test_dflash_kinds.py::test_proposes_what_the_oracle_does_from_every_format",
        "cuda": "tests/backends/cuda/test_pair.py::test_proposals_are_those_of_the_torch_drafter",
    },
    "dflash over qwen35": {"cpu": _FAMILIES, "llama.cpp": _FAMILIES},
    "dflash over qwen35moe": {"cpu": _FAMILIES, "llama.cpp": _FAMILIES},
    "dflash over gpt-oss": {"cpu": _FAMILIES, "llama.cpp": _FAMILIES},
    "dflash over gemma4": {"llama.cpp": _FAMILIES},
    "dflash over qwen3next": {},  # nothing is drafted
    "dflash2 over qwen35": {"cpu": _FAMILIES, "llama.cpp": _FAMILIES},
    "dflash2 over qwen35moe": {"cpu": _FAMILIES, "llama.cpp": _FAMILIES},
    "dspark over lfm2": {"llama.cpp": _FAMILIES},
    "dspark over lfm2moe": {"llama.cpp": _FAMILIES},
}


def runs_of(pair: PairEntry) -> dict[Runner, str]:
    """Return the tests that ran a pair's target, or its architecture, by the backend."""
    return OWN_WEIGHTS.get(pair.id) or TARGETS.get(pair.architecture or "", {})


def drafters_of(pair: PairEntry) -> dict[Runner, str]:
    """Return the tests that ran drafters like a pair's, by backend, if the backend ran its target."""
    if not pair.drafter:
        return {}
    kind = pair.drafter.kind
    tests = DRAFTERS.get(f"{kind} over {pair.architecture}", DRAFTERS.get(kind, {}))
    return {backend: test for backend, test in tests.items() if backend in runs_of(pair)}


def table() -> str:
    """Return the table of the page: one row for all pairs that the same tests ran."""
    head = ["pairs", *BACKENDS, *(f"drafter on {backend}" for backend in BACKENDS), "weights", "not known"]
    pairs_by_cells: dict[tuple[str, ...], list[str]] = {}
    for pair in read_pairs(shipped_file(), MODELS_FOLDER).values():
        pairs_by_cells.setdefault(tuple(_cells(pair)), []).append(f"`{pair.id}`")
    rows = [head, ["---"] * len(head), *([", ".join(pairs), *cells] for cells, pairs in pairs_by_cells.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(pair: PairEntry) -> Iterator[str]:
    for backend in BACKENDS:
        yield _cell(backend, pair.ran, pair.by_parts, runs_of(pair))
    for backend in BACKENDS:
        drafter = pair.drafter
        yield _cell(backend, drafter.ran, drafter.by_parts, drafters_of(pair)) if drafter else "—"
    yield {"its own weights": "its own", "random weights": "random", None: "—"}[pair.ran_with]
    yield ", ".join(pair.unknown) or "—"


def _cell(backend: Runner, ran_backends: tuple[str, ...], by_parts: tuple[str, ...], tests: dict[Runner, str]) -> str:
    if backend not in (*ran_backends, *by_parts):
        return "no"
    file, name = tests[backend].split("::")
    return f'[{"ran" if backend in ran_backends else "by parts"}](../{file} "{name}")'


def page_with(new_table: str) -> str:
    """Return the page with its table replaced."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{new_table}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()), encoding="utf-8")
