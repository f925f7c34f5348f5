"""Each supported model family with a drafter in the published form: drafted, shortened and repeated requests give the
text of decoding without drafting. On llama.cpp, safetensors drafters run in torch.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp.certified import FileMeasurement, MeasuredMode
from localdflash.backends.llamacpp.decode_flags import DEFAULT, MAX_WIDTH_WITH_STATES
from localdflash.engine.controller import Controller
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Drafter, Target
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.backends import load_on
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.converted_models import VOCABULARY, ids_of
from tests.support.guessing import Eager
from tests.support.random_drafters import YARN, config_of, random_weights, write_zlab
from tests.support.target_models import case_of

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, seed=3)


@dataclass(frozen=True)
class Family:
    """Target architecture with the properties of its drafters."""

    architecture: str
    backends: tuple[Runner, ...]
    variant: str = "full"
    drafter: dict[str, Any] = field(default_factory=dict)
    biases: bool = False
    rope: dict[str, Any] | None = None


FAMILIES = {
    "gpt-oss": Family(
        "gpt-oss", ("cpu", "llama.cpp"), biases=True, rope=YARN | {"rope_type": "yarn", "truncate": False}
    ),
    "gemma4": Family(
        "gemma4",
        ("llama.cpp",),
        "sliding, causal by default",
        {"embedding_scale": 8.0, "softcap": 5.0, "window": 24, "taps": (0, 1, 2, 0, 1, 2)},
    ),
    "qwen35": Family("qwen35", ("cpu", "llama.cpp")),
    "qwen35moe": Family("qwen35moe", ("cpu", "llama.cpp"), drafter={"taps": (0, 1, 2, 0, 1, 2, 0, 1)}),
    "qwen35 with DFlash 2": Family("qwen35", ("cpu", "llama.cpp"), "DFlash 2"),
    "qwen35moe with DFlash 2": Family("qwen35moe", ("cpu", "llama.cpp"), "DFlash 2"),
    "lfm2": Family("lfm2", ("llama.cpp",), "DSpark with confidence"),
    "lfm2moe": Family("lfm2moe", ("llama.cpp",), "DSpark with confidence"),
}
CASES = [(name, backend) for name, family in FAMILIES.items() for backend in family.backends]


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalPair:
    family, folder = FAMILIES[request.param], tmp_path_factory.mktemp("family")
    case = case_of(family.architecture, "Q8_0")
    target = case.write(folder / "target.gguf", "Q8_0", tokens=[f"token {token}" for token in range(VOCABULARY)])
    config = config_of(family.variant, VOCABULARY, **{"taps": (0, 1, 2)} | family.drafter)
    config = replace(config, decoder=replace(config.decoder, attention_bias=family.biases))
    changes = {"rope_scaling": family.rope} if family.rope else {}
    return LocalPair("tiny", target, None, write_zlab(folder, config, random_weights(config), **changes), None)


def eager(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """Return a controller that verifies whole drafts, since drafts of random weights are seldom right."""
    return Eager({1: 1.0, 2: 1.0}, {drafter.name: 0.0 for drafter in drafters})


def text_of(running: Running, ids: list[int], params: SamplingParams) -> tuple[list[int], Request]:
    request = Request(ids, 40, params)
    return [token for step in generate(running.pair, request, PrefixCache(1 << 30)) for token in step.tokens], request


@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize(("files", "backend"), CASES, indirect=["files"])
def test_a_pair_writes_the_same_with_its_drafter(
    files: LocalPair, backend: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts exceed windows and the positions that RoPE scaling extends; llama.cpp's small widths are certified."""
    known = MeasuredMode(DEFAULT.limit_width(MAX_WIDTH_WITH_STATES), {2: 1.0})
    monkeypatch.setattr(certified, "measure", lambda *_: FileMeasurement(1.0, (known,), MAX_WIDTH_WITH_STATES))
    options = Options("tiny", backend, threads=1, context=256, costs=eager)
    with (
        closing(load_on(backend, files, options)) as drafting,
        closing(load_on(backend, files, replace(options, draft=False))) as plain,
    ):
        assert drafting.host_pair
        assert [drafter.name for drafter in drafting.host_pair.drafters if drafter.is_model] == ["dflash"]
        steps = 0
        for seed, params in enumerate((GREEDY, SAMPLED)):
            ids = ids_of(100, seed)
            expected, _ = text_of(plain, ids, params)
            tokens, request = text_of(drafting, ids, params)
            assert tokens == expected
            steps += request.stats.steps_by_drafter.get("dflash", 0)
            regenerated, _ = text_of(drafting, [*ids, *expected[:10]], GREEDY)
            assert regenerated == text_of(plain, [*ids, *expected[:10]], GREEDY)[0]
        assert steps > 10
