"""The GPU checks with the kernels in Triton's interpreter: correct kernels pass, and injected faults are found.

Faults change single numbers of a kernel's results, so that the comparison includes the kernels' own rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.proof import stages
from localdflash.backends.cuda.proof.operations import CheckError
from tests.backends.cuda.proof.test_stages import Spoil, add, fault, run
from tests.support.cuda_pairs import load_on_cpu
from tests.support.interpreter import ordered_dot
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

Load = Callable[..., CudaPair]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Return a function that loads a pair with the kernels: one layer, or three if a drafter taps two."""

    def load(experts: bool = False, drafts: bool = True, **settings: Any) -> CudaPair:
        shape = replace(SHAPE, num_hidden_layers=3 if drafts else 1, **(EXPERTS if experts else {}))
        folder = tmp_path_factory.mktemp("tiny")
        target = write_target(folder / "target.gguf", shape)
        drafter = write_drafter(folder, shape) if drafts else None
        return load_on_cpu(target, drafter, KERNELS, context=384, **settings)

    return load


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    sizes = {"TEXT_TOKENS": 2, "SAMPLED_TOKENS": 1, "REPLAYED_STEPS": 1, "BUCKETS": (1, 24), "CHECKED_ROWS": (6,)}
    with pytest.MonkeyPatch.context() as patch, ordered_dot():
        for name, value in sizes.items():
            patch.setattr(stages, name, value)
        yield


@pytest.mark.parametrize("kind", ["experts", "int8 keys", "with a drafter"])
def test_sound_kernels_pass(kind: str, load: Load) -> None:
    pair = load(kind == "experts", drafts=kind == "with a drafter", kv="int8" if kind == "int8 keys" else "f16")
    assert run(pair, "operations", "short prompt", "rows") == ["operations", "short prompt", "rows"]


def test_sound_kernels_pass_every_check(load: Load) -> None:
    assert len(run(load())) == 8


@pytest.mark.parametrize(
    ("operation", "part", "value"),
    [("qkv", "cache.k", 1.0), ("attention", "out", float("nan")), ("route", "routing.weights", 0.01)],
)
def test_one_wrong_value_is_reported(operation: str, part: str, value: float, load: Load) -> None:
    spoil: Spoil = add(part, value)
    pair = load(experts=True, drafts=False)
    with (
        fault(pair, {operation: spoil}),
        pytest.raises(CheckError, match=rf"^{operation} of layer 0: {part} differs"),
    ):
        run(pair, "operations")
