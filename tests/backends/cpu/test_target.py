"""The CPU target: its logits, and that no bit depends on drafts, chunks, threads or instruction sets."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_kv_cache import CPU_KV_FORMATS, KVCache
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, load
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import LocaldflashError, NoDevice, UsageError
from localdflash.engine.checkpoints import SPACING_TOKENS as APART
from localdflash.engine.draft import Draft
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import UNCHANGED
from localdflash.models.memory.parts import DRAFTER_KV, TARGET_KV
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import read_header
from tests.backends.cpu.conftest import SHAPES, needs_library
from tests.backends.cpu.packed_models import QUANTIZED, dequantized, target_tensors
from tests.backends.cpu.packed_models import write as write_packed
from tests.backends.cpu.rounded import logits_of, relative, round_inputs
from tests.support import converted_models, gpt_oss_models, qwen35_models, random_models
from tests.support.costs import drafting_pays
from tests.support.lossless import Row, assert_lossless, fill, one_by_one, same, verify
from tests.support.tiny_models import write_target

pytestmark = needs_library
TAPS = (0, 1)
CASES: dict[str, Callable[[Path], Path]] = {
    "qwen2": lambda path: converted_models.case_of("qwen2", "Q8_0").write(path, "Q8_0"),
    "gpt-oss": lambda path: gpt_oss_models.case_of("Q8_0", "MXFP4").write(path, "Q8_0", "MXFP4"),
    "qwen35": lambda path: qwen35_models.case_of("qwen35", "Q8_0").write(path, "Q8_0"),
    "qwen35 ending in a delta net": lambda path: qwen35_models.case_of("qwen35", "Q8_0", (1,)).write(path, "Q8_0"),
    "qwen35moe": lambda path: qwen35_models.case_of("qwen35moe", "Q8_0").write(path, "Q8_0"),
}
LONG_CASES: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: converted_models.case_of("qwen2", "Q8_0"),
    "gpt-oss": lambda: gpt_oss_models.case_of("Q8_0", "MXFP4"),
    "qwen35": lambda: qwen35_models.case_of("qwen35", "Q8_0"),
}
KEYS_OF_A_PART = 512  # PART in kernels/cpu/formats.h
NewPool = Callable[..., ThreadPool]


def ids_of(count: int, vocabulary: int = 96) -> list[int]:
    return [int(i) for i in np.random.default_rng(5).integers(0, vocabulary, count)]


@pytest.fixture(scope="module", params=[*SHAPES, *CASES])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a target of each kind; return its file."""
    file = tmp_path_factory.mktemp("targets") / f"{request.param}.gguf"
    return CASES[request.param](file) if request.param in CASES else write_target(file, *SHAPES[request.param])


def test_is_lossless(path: Path, new_team: NewPool) -> None:
    for kv in CPU_KV_FORMATS:
        target = CpuTarget(open_target(path), new_team(), taps=TAPS, kv=kv)
        few = target.is_recurrent or kv != "f16"
        widths = (2, 3, 5, 8, 16, 17, 33, MAX_ROWS) if few else (*range(2, 34), MAX_ROWS)
        assert_lossless(target, ids_of(71 + MAX_ROWS), widths, chunks=(1, 7, 33))


def test_threads_and_instruction_sets_change_no_bit(path: Path, new_team: NewPool) -> None:
    packed, ids, results = open_target(path), ids_of(60), list[list[Row]]()
    pools = [*map(new_team, (1, 3, 5)), *(new_team(2, name) for name in load().instruction_sets)]
    assert [pool.instruction_set for pool in pools[3:]] == load().instruction_sets
    for pool in pools:
        for kv in CPU_KV_FORMATS:
            target = CpuTarget(packed, pool, taps=TAPS, kv=kv)
            target.extend(ids[:40])
            results.append(verify(target, ids[40:]))
    assert all(same(rows, results[i % len(CPU_KV_FORMATS)]) for i, rows in enumerate(results))


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss", "qwen35"])
def test_threads_that_share_the_keys_of_a_head_change_no_bit(name: str, tmp_path: Path, new_team: NewPool) -> None:
    ids, file = ids_of(2 * KEYS_OF_A_PART + 100), tmp_path / "model.gguf"
    case = LONG_CASES[name]()
    case.numbers["context_length"] = len(ids)
    packed = open_target(case.write(file, "Q8_0", "MXFP4") if name == "gpt-oss" else case.write(file, "Q8_0"))
    for kv in CPU_KV_FORMATS:
        expected = None
        for threads in (1, 3, 5):
            target = CpuTarget(packed, new_team(threads), taps=TAPS, kv=kv)
            fill(target, ids[:-9], MAX_ROWS)
            rows = one_by_one(target, ids[-9:])
            expected = expected or rows
            assert same(rows, expected)
            for width in (2, 5, 8, 9):
                fill(target, ids[:-9], MAX_ROWS)
                assert same(verify(target, ids[-9:][:width]), expected[:width])


def test_long_prompt_saves_intermediate_states(tmp_path: Path, new_team: NewPool) -> None:
    case, ids = qwen35_models.case_of("qwen35", "Q8_0"), ids_of(5 * APART + 30)
    case.numbers["context_length"] = 6 * APART
    target = CpuTarget(open_target(case.write(tmp_path / "model.gguf", "Q8_0")), new_team(), taps=(0,))
    HostPair(target).prefill(ids)
    for length, kept in ((5 * APART + 10, 5 * APART), (4 * APART, 4 * APART), (3 * APART + 5, 3 * APART)):
        target.crop(length)
        assert target.length == kept
    expected = verify(target, ids[kept : kept + 9])
    target.crop(3 * APART - 1)
    assert target.length == 0
    fill(target, ids[:kept], 64)
    assert same(verify(target, ids[kept : kept + 9]), expected)


@pytest.mark.parametrize("path", ["Q8_0", "gpt-oss", "qwen35"], indirect=True)
def test_logits_of_coded_kv_caches_are_near_float16(path: Path, new_team: NewPool) -> None:
    packed, ids, rows = open_target(path), ids_of(120), []
    for kv in CPU_KV_FORMATS:
        target = CpuTarget(packed, new_team(), kv=kv)
        fill(target, ids[:100], 50)
        rows.append(np.stack([row[0] for row in verify(target, ids[100:])]))
    expected, *coded = rows
    for actual, limit in zip(coded, (0.12, 0.5), strict=True):  # a mixture may choose other experts
        assert 0 < np.linalg.norm(actual - expected) < limit * np.linalg.norm(expected)


@pytest.mark.parametrize("path", SHAPES, indirect=True)
def test_rounded_activations_are_near_float32(path: Path, new_team: NewPool) -> None:
    """Logits are near those of the reference with the same rounding, until the first code differs."""
    ids = ids_of(130, 150)
    target, model = CpuTarget(open_target(path), new_team(), taps=TAPS), load_decoder(path)
    exact, _ = logits_of(model, ids)
    round_inputs(model)
    logits, taps = logits_of(model, ids, TAPS)
    actual = list[Row]()
    for start in range(0, len(ids), 26):
        actual += verify(target, ids[start : start + 26])
        target.keep(26)
    found_logits, found_taps = (torch.from_numpy(np.stack(part)) for part in zip(*actual, strict=True))
    first = model.config.hidden_size
    assert relative(found_logits[:4], logits[:4]) < 1e-4
    assert relative(found_taps[:4], taps[:4]) < 1e-4
    assert relative(found_taps[:, :first], taps[:, :first]) < 0.006
    assert relative(found_logits, logits) < 0.03
    assert relative(found_logits, exact) < 0.12  # with random weights a mixture sometimes chooses other experts


@pytest.mark.parametrize("kind", QUANTIZED, ids=[kind.name for kind in QUANTIZED])
def test_every_weight_type(kind: GGMLType, tmp_path: Path, new_team: NewPool) -> None:
    ids, pools = ids_of(33, 70), [new_team(3, name) for name in load().instruction_sets]
    for architecture in ("qwen3", "qwen3moe"):
        path = write_packed(tmp_path / f"{architecture}.gguf", target_tensors(architecture, kind), architecture)
        packed, model = open_target(path), load_decoder(path)
        rows = verify(CpuTarget(packed, new_team(1)), ids)
        for pool in pools:
            assert same(verify(CpuTarget(packed, pool), ids), rows), pool.instruction_set
        target = CpuTarget(packed, new_team(2))
        for width in (1, 2, 3, 9, 16, 32):
            assert same(verify(target, ids[:width]), rows[:width]), width
        round_inputs(model)
        actual, (expected, _) = torch.from_numpy(np.stack([row[0] for row in rows])), logits_of(model, ids)
        assert relative(actual[:2], expected[:2]) < 0.02  # a rounding may tip over; a wrong weight makes it more
        assert relative(actual, expected) < 0.05

    # Embeddings are exact: blocks that add nothing leave them unchanged, where a tap sees them.
    tensors = target_tensors(kind=kind)
    embeddings = dequantized(*tensors["token_embd.weight"])
    for name, (its, raw) in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensors[name] = its, np.zeros_like(raw)
    packed = open_target(write_packed(tmp_path / "model.gguf", tensors))
    for pool in pools:
        rows = verify(CpuTarget(packed, pool, taps=(0,)), ids)
        assert np.array_equal(np.array([row[1] for row in rows]), embeddings[ids]), pool.instruction_set


# Quantized files of llama.cpp, and the types in them besides F32.
MIXES = {
    "Q5_1": {"Q5_1", "Q6_K"},
    "Q2_K": {"Q2_K", "Q3_K", "Q4_K", "Q6_K"},
    "IQ4_XS": {"IQ4_XS", "Q5_K", "Q6_K"},
    "MXFP4_MOE": {"MXFP4", "Q8_0"},
}


@pytest.mark.parametrize("mix", MIXES)
def test_files_quantized_by_llama_cpp(mix: str, tmp_path: Path, new_team: NewPool) -> None:
    experts = 4 if mix == "MXFP4_MOE" else 0
    shape = random_models.Shape("F16", 256, 2, 4, 2, 256, 256, experts=experts, used=min(experts, 2), scale=0.1)
    source = random_models.write(tmp_path / "model.gguf", shape)
    path = random_models.quantize(source, tmp_path / f"{mix}.gguf", mix)
    types = {info.ggml_type.name for info in read_header(path).tensors.values()} - {"F32"}
    assert types & MIXES[mix]
    assert types <= MIXES[mix]
    theirs, ids = LlamaCppTarget(path, 64, 1), ids_of(32, 70)
    expected, actual = verify(theirs, ids), verify(CpuTarget(open_target(path), new_team()), ids)
    theirs.close()
    assert relative(*(torch.from_numpy(np.stack([row[0] for row in rows])) for rows in (actual, expected))) < 0.05


# Greedy verification, limits and refusals


@pytest.mark.parametrize("path", ["Q8_0"], indirect=True)
def test_greedy_tokens_match_logits(path: Path, new_team: NewPool) -> None:
    packed, draft = open_target(path), Draft("test", (5, 9, 2), (0.5, 0.5, 0.5))
    target = CpuTarget(packed, new_team(), taps=(0,))
    target.extend([1, 2, 3])
    seen = target.verify(4, draft)
    assert seen.features is not None
    logits, taps = seen.logits.copy(), seen.features.copy()
    likeliest, features = target.verify_greedy(4, draft)
    assert likeliest == logits.argmax(1).tolist()
    assert features is not None
    assert np.array_equal(features, taps)
    damaged = CpuTarget(
        replace(packed, parts={**packed.parts, "norm": np.full_like(packed.parts["norm"], np.nan)}), new_team()
    )
    with pytest.raises(LocaldflashError, match="not numbers"):
        damaged.verify_greedy(4, draft)


@pytest.mark.parametrize("path", ["Q8_0"], indirect=True)
def test_invalid_requests_are_refused(path: Path, new_team: NewPool) -> None:
    target = CpuTarget(open_target(path), new_team())
    for token in (-1, target.vocab_size, 2**31, 2**64):
        with pytest.raises(UsageError, match="token"):
            target.verify(token)
    target.verify(target.vocab_size - 1)
    with pytest.raises(LocaldflashError, match="a batch holds 64"):
        target.extend([1] * (MAX_ROWS + 1))
    with pytest.raises(NoDevice, match="avx1024: not supported"):
        new_team(1, "avx1024")
    target.close()
    target.close()
    with pytest.raises(LocaldflashError, match="closed"):
        target.verify(1)


@pytest.mark.parametrize("kv", CPU_KV_FORMATS)
def test_only_given_positions_are_cleared_and_wrong_state_sizes_refused(kv: str) -> None:
    config = SHAPES["Q8_0"][0]
    cache = KVCache(2, config, 60, kv)
    assert cache.capacity == 64
    cache.load(np.ones(len(cache.save(64)), np.uint8).tobytes(), 64)
    cache.clear(5, 38)
    assert (np.frombuffer(cache.save(64), np.uint8) == 0).mean() == 33 / 64
    by_position = cache.arrays[-1].reshape(2, config.num_key_value_heads, 64, -1)
    assert (by_position[:, :, 5:38] == 0).all()
    assert (by_position[:, :, [*range(5), *range(38, 64)]] != 0).all()
    for wrong in (cache.save(33)[:-4], cache.save(33) + b"\0\0\0\0", b""):
        with pytest.raises(ValueError, match=r"buffer|bytes"):
            cache.load(wrong, 33)


@pytest.mark.parametrize("coded", CPU_KV_FORMATS[1:])
def test_pair_with_coded_kv_cache(tiny_pair: Path, coded: str) -> None:
    files = tiny_pair / "target.gguf", tiny_pair / "drafter.gguf"
    with ExitStack() as stack:

        def load(kv: str, draft: bool) -> LoadedPair:
            options = Options(str(files[0]), "cpu", threads=2, context=256, kv=kv, draft=draft, costs=drafting_pays)
            return stack.enter_context(LoadedPair(options))

        loaded, plain, halves = load(coded, True), load(coded, False), load("f16", True)
        for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=3)):
            drafted, expected = (
                [step.tokens for step in generate(one.pair, Request(ids_of(20), 60, params))] for one in (loaded, plain)
            )
            assert [*chain(*drafted)] == [*chain(*expected)]
            assert params.temperature or len(drafted) < len(expected) == 60
        for part in (TARGET_KV, DRAFTER_KV):
            assert loaded.predicted_memory[part] == loaded.memory()[part]
        assert loaded.identity() != halves.identity()
    f16, other = (CpuSizes(*files, kv=kv).parts(256, UNCHANGED) for kv in ("f16", coded))
    assert f16[DRAFTER_KV] == other[DRAFTER_KV]
    low, high = {"int8": (0.5, 0.6), "k8v4": (0.4, 0.45)}[coded]
    assert low < other[TARGET_KV] / f16[TARGET_KV] < high
