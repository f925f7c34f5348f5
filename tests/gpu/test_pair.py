"""The whole pair on the GPU: every step mode gives the same text, which is that of float32 up to near ties.

With LOCALDFLASH_GPU_TESTS=interpreter the references stand in for the kernels, since the interpreter would take hours.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from safetensors.torch import save_file
from torch import Tensor

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.device import free_unused_memory
from localdflash.backends.cuda.ops import KERNELS, REFERENCES
from localdflash.backends.cuda.stepper import StepMode
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.scripts import synthetic
from localdflash.models.load_options import Options
from localdflash.models.shapes.dflash_json import config_of_json
from tests.support.cuda_pairs import CPU, answer

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "localdflash" / "models" / "embedded"
MODES: tuple[StepMode, ...] = ("plain", "lookup", "draft", "block")


def load(folder: Path, device: torch.device, drafter: str = "drafter.gguf", **settings: Any) -> CudaPair:
    ops = KERNELS if device.type == "cuda" else REFERENCES
    return load_pair(folder / "target.gguf", folder / drafter, device, Options(**settings), ops)


@pytest.fixture(scope="module")
def pair(device: torch.device) -> CudaPair:
    return load(EMBEDDED, device)


@pytest.fixture(scope="module")
def exact() -> CudaPair:
    """Load the pair in float32, with the references."""
    return load_pair(EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf", CPU, Options(draft=False), REFERENCES)


@pytest.fixture(scope="module")
def prompts(device: torch.device) -> list[list[int]]:
    """Return some prompts of every category."""
    found = json.loads((ROOT / "lab" / "scripts" / "gpu" / "embedded_prompts.json").read_text())
    return [prompt["ids"] for prompt in found[:: 17 if device.type == "cuda" else 90]]


@pytest.fixture
def length(device: torch.device) -> int:
    """Return the number of tokens to generate."""
    return 96 if device.type == "cuda" else 12


def run(pair: CudaPair, ids: Sequence[int], count: int, **params: Any) -> list[int]:
    return answer(pair, ids, count, SamplingParams(**params))


@pytest.mark.parametrize("mode", MODES[1:])
def test_drafts_do_not_change_a_token(pair: CudaPair, prompts: list[list[int]], mode: StepMode, length: int) -> None:
    for ids in prompts:
        assert run(pair.with_mode(mode), ids, length) == run(pair.with_mode("plain"), ids, length)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
        {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": ((198, -2.0),)},  # the host samples
    ],
)
def test_sampled_drafts_do_not_change_a_token_either(
    pair: CudaPair, prompts: list[list[int]], params: dict[str, Any], length: int
) -> None:
    params = params | {"seed": 7, "repetition_penalty": 1.1}
    for ids in prompts[::3]:
        plain = run(pair.with_mode("plain"), ids, length, **params)
        for mode in MODES[1:]:
            assert run(pair.with_mode(mode), ids, length, **params) == plain


def test_no_answer_waits_for_a_compiler(
    pair: CudaPair, prompts: list[list[int]], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton compiles nothing and looks up nothing in its cache after loading."""
    compiled = list[str]()
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **info: compiled.append(info["repr"]))
    run(pair, [token for prompt in prompts for token in prompt][:900], length)  # in blocks of every size
    for mode in MODES[:2] + MODES[3:]:
        run(pair.with_mode(mode), prompts[0], length)
        run(pair.with_mode(mode), prompts[0], length, temperature=0.8, repetition_penalty=1.1)
    assert not compiled


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_drafts_do_not_change_a_token_with_an_8_bit_kv_cache(
    kv: str, device: torch.device, prompts: list[list[int]], length: int
) -> None:
    if device.type == "cuda" and kv == "fp8" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("compute capability 8.9 is needed")
    pair = load(EMBEDDED, device, kv=kv)
    for ids in (prompts[0], [token for prompt in prompts for token in prompt][:700]):
        assert run(pair, ids, length) == run(pair.with_mode("plain"), ids, length)


def test_a_closed_pair_gives_its_memory_back(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("memory of a GPU")
    reserved = list[int]()
    for _ in range(3):
        pair = load(EMBEDDED, device, context=2048)
        pair.close()
        free_unused_memory()
        reserved.append(torch.cuda.memory_reserved(device))  # the GPU's count includes other processes
    assert reserved[2] == reserved[1]


def test_offloaded_sequence_is_restored(
    pair: CudaPair, prompts: list[list[int]], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is bit-identical, although its slots were overwritten."""
    monkeypatch.setattr("localdflash.backends.cuda.offload.STAGING_BYTES", 1 << 18)  # a few slots per block
    ids = prompts[0]
    text = run(pair, ids, length)
    pair.prefill(ids)
    still = pair.save()
    still.wait()
    moving = pair.save()
    run(pair, prompts[1], length)
    moving.wait()
    assert (moving.ids, moving.target, moving.drafters) == (still.ids, still.target, still.drafters)
    pair.load(moving)
    again = generate(pair, Request(ids, length, SamplingParams()))
    assert [token for step in again for token in step.tokens] == text


def logits(pair: CudaPair, ids: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Return the target's logits of the next token."""
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.MAX_STEPS_IN_FLIGHT", 1)  # the next overwrites logits
    pair = pair.with_mode("plain")
    pair.forget()
    pair.prefill(ids)
    pair.step(Sampler(SamplingParams(temperature=1.0, seed=1)), 1)
    assert pair.stepper.sampling is not None
    return pair.stepper.sampling.logits[0].float().cpu()


@pytest.mark.parametrize("size", [1, 16, 17, 75, 200, 530, 1000])
def test_logits_are_those_of_float32(
    pair: CudaPair, exact: CudaPair, prompts: list[list[int]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 129 or more tokens are read in blocks."""
    joined = [token for prompt in prompts for token in prompt]
    for ids in prompts[::4] if size <= 200 else [joined]:
        actual, expected = (logits(one, ids[:size], monkeypatch) for one in (pair, exact))
        assert float(expected.std()) > 0.5
        assert float((actual - expected).abs().max()) < 0.02 * float(expected.abs().max())


def write_slots(folder: Path, fields: dict[str, Any]) -> None:
    """Write a random DSpark or DFlash 2 drafter for the tiny target, as safetensors."""
    c = synthetic.TINY
    document = fields | {
        "architectures": ["DFlashDraftModel"], "block_size": 8, "mask_token_id": 511, "target_layer_ids": [1, 3, 5],
        "num_hidden_layers": 2, "vocab_size": c.vocab_size, "hidden_size": c.hidden_size, "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size, "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads, "rope_theta": c.rope_theta,
        "max_position_embeddings": c.context_length,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(document))
    torch.manual_seed(0)
    shapes = DFlash(config_of_json(document, "config.json")).state_dict()
    state = {
        name: 1 + 0.1 * torch.randn(part.shape) if part.ndim == 1 else 0.1 * torch.randn(part.shape)
        for name, part in shapes.items()
    }
    save_file(state, folder / "drafter.safetensors")


@pytest.mark.parametrize("fields", [
    {"markov_rank": 64, "sample_from_anchor": True},
    {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 16},
], ids=["DSpark", "DFlash 2"])  # fmt: skip
def test_drafters_that_choose_slot_by_slot(
    fields: dict[str, Any], device: torch.device, tmp_path: Path, length: int
) -> None:
    """The text is the target's, and a graph proposes the tokens of float32, up to near ties."""
    synthetic.write_target(tmp_path / "target.gguf", synthetic.TINY, "tiny")
    write_slots(tmp_path, fields)
    pair, exact = (load(tmp_path, each, "drafter.safetensors", context=1024) for each in (device, CPU))
    ids, proposed = list(range(60)), list[list[int]]()
    plain = run(pair.with_mode("plain"), ids, length)
    assert run(pair.with_mode("draft"), ids, length) == plain
    for one in (pair, exact):
        one.forget()
        one.prefill(ids)
        one.reset_device(len(ids) - 1)
        one.stepper.catch_up()
        one.stepper.draft_block(1)
        proposed.append(one.stepper.draft[1:8].tolist())
    assert proposed[0][0] == proposed[1][0]
    assert sum(a == b for a, b in zip(*proposed, strict=True)) >= 5
