"""DFlash against an oracle written from the specification in float64, and against llama.cpp's own graph."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.errors import LocaldflashError
from localdflash.llamacpp import drafter as drafting
from localdflash.llamacpp.drafter import LlamaCppDFlashDrafter
from localdflash.llamacpp.target import LlamaCppTarget
from localdflash.model.dflash_config import config_of_file
from localdflash.reference.dflash_files import load
from localdflash.reference.dflash_model import DFlash
from localdflash.reference.drafter import DFlashDrafter
from localdflash.reference.gguf_decoder import load_decoder

Array = NDArray[np.float64]


def norm(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return normed


def rope(x: Array, positions: Array, theta: float) -> Array:
    """Rotate-half RoPE of [T, heads, hd]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    turned: Array = np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
    return turned


def oracle(model: DFlash, embedding: Array, head: Array, taps: Array, anchor: int) -> Array:
    """Logits of all slots, one query and one key at a time in float64."""
    config, c = model.config, model.config.decoder
    w = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    start, size = len(taps), config.block_size
    fused = norm(taps @ w["fc.weight"].T, w["hidden_norm.weight"], c.rms_norm_eps)
    x = embedding[[anchor] + [config.mask_token_id] * (size - 1)] * config.embedding_scale
    before, block = np.arange(start, dtype=float), np.arange(start, start + size, dtype=float)
    for i in range(c.num_hidden_layers):
        p = f"layers.{i}."
        u = norm(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)

        def heads(rows: Array, name: str, count: int, at: Array | None, prefix: str = p) -> Array:
            y: Array = (rows @ w[f"{prefix}self_attn.{name}_proj.weight"].T).reshape(len(rows), count, c.head_dim)
            if at is None:
                return y
            return rope(norm(y, w[f"{prefix}self_attn.{name}_norm.weight"], c.rms_norm_eps), at, c.rope_theta)

        kv = c.num_key_value_heads
        q = heads(u, "q", c.num_attention_heads, block)
        k = np.concatenate((heads(fused, "k", kv, before), heads(u, "k", kv, block)))
        v = np.concatenate((heads(fused, "v", kv, None), heads(u, "v", kv, None)))
        out = np.zeros_like(q)
        for row in range(size):
            for h in range(c.num_attention_heads):
                seen = []
                for key in range(len(k)):
                    inside = key >= start
                    if inside and config.is_causal(i) and key > start + row:
                        continue
                    if config.is_sliding(i) and config.window and abs(start + row - key) >= config.window:
                        continue
                    seen.append(key)
                group = h // (c.num_attention_heads // kv)
                scores = k[seen, group] @ q[row, h] / np.sqrt(c.head_dim)
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ v[seen, group] / weights.sum()
        x = x + out.reshape(size, -1) @ w[p + "self_attn.o_proj.weight"].T
        u = norm(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
        gate = u @ w[p + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (u @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    logits: Array = norm(x, w["norm.weight"], c.rms_norm_eps) @ head.T
    return logits


@pytest.fixture
def drafter(tiny_pair: Path) -> DFlashDrafter:
    target = load_decoder(tiny_pair / "target.gguf")
    return DFlashDrafter(load(tiny_pair / "drafter.gguf"), target.embed_tokens.weight, target.lm_head.weight)


def taps_of(drafter: DFlashDrafter, rows: int, seed: int = 0) -> NDArray[np.float32]:
    width = drafter.model.fc.in_features
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


VARIANTS = {
    "full": {},
    "sliding, causal by default": {"window": 6, "sliding": (True, False)},
    "sliding, bidirectional": {"window": 6, "sliding": (True, True), "causal": False},
    "causal everywhere": {"causal": True},
    "scaled embedding": {"embedding_scale": 2.5},
    "from the anchor": {"from_anchor": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("context", [1, 4, 23])
def test_drafts_equal_the_oracle(drafter: DFlashDrafter, variant: str, context: int) -> None:
    drafter.model.config = replace(drafter.model.config, **VARIANTS[variant])  # type: ignore[arg-type]
    taps = taps_of(drafter, context)
    drafter.observe([7] * context, taps)
    draft = drafter.propose(11, 99)
    embedding, head = drafter._embedding.double().numpy(), drafter._head.double().numpy()
    logits = oracle(drafter.model, embedding, head, taps.astype(np.float64), 11)[drafter.model.config.first_slot :]
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    assert list(draft.tokens) == logits.argmax(-1).tolist()
    assert np.allclose(draft.confidence, probabilities.max(-1), rtol=1e-3)


@pytest.mark.parametrize("ids", [[7], [0, 511], list(range(2, 500, 3))])
def test_a_short_vocabulary_gives_the_best_of_its_rows(ids: list[int], tiny_pair: Path) -> None:
    target, dflash = load_decoder(tiny_pair / "target.gguf"), load(tiny_pair / "drafter.gguf")
    dflash.config = replace(dflash.config, short=tuple(ids))
    head = target.lm_head.weight
    drafter = DFlashDrafter(dflash, target.embed_tokens.weight, head)
    taps = taps_of(drafter, 9)
    drafter.observe([7] * 9, taps)
    found = drafter.propose(11, 99)
    embedding, rows = (table.double().numpy() for table in (target.embed_tokens.weight, head[ids]))
    logits = oracle(dflash, embedding, rows, taps.astype(np.float64), 11)[1:]
    assert list(found.tokens) == [ids[best] for best in logits.argmax(-1)]
    assert np.allclose(found.confidence, 1 / np.exp(logits - logits.max(-1, keepdims=True)).sum(-1), rtol=1e-3)
    equal = DFlashDrafter(dflash, target.embed_tokens.weight, head[:1].expand(head.shape))
    equal.observe([7] * 9, taps)
    assert set(equal.propose(11, 99).tokens) == {ids[0]}  # of equals the lowest


def test_the_anchor_is_part_of_the_block(drafter: DFlashDrafter) -> None:
    drafter.observe([7] * 5, taps_of(drafter, 5))
    assert drafter.propose(1, 7).confidence != drafter.propose(2, 7).confidence


def test_features_may_come_in_any_portions_and_rejected_ones_leave_no_trace(drafter: DFlashDrafter) -> None:
    taps = taps_of(drafter, 20)
    drafter.observe([7] * 20, taps)
    expected = drafter.propose(3, 7)
    drafter.rollback(6)
    drafter.observe([7] * 9, taps_of(drafter, 9, seed=1))
    drafter.rollback(6)
    for row in taps[6:]:
        drafter.observe([7], row[None])
    again = drafter.propose(3, 7)
    assert again.tokens == expected.tokens
    assert np.allclose(again.confidence, expected.confidence, rtol=1e-4)


def test_a_saved_state_drafts_the_same(drafter: DFlashDrafter) -> None:
    drafter.observe([7] * 12, taps_of(drafter, 12))
    expected, state = drafter.propose(3, 7), drafter.save()
    drafter.rollback(0)
    drafter.load(state, [7] * 12)
    assert drafter.length == 12
    assert drafter.propose(3, 7) == expected


def test_missing_taps_are_said(drafter: DFlashDrafter) -> None:
    with pytest.raises(LocaldflashError, match="taps are off"):
        drafter.observe([1], None)


@pytest.fixture(params=[False, True], ids=["from slot 1", "from the anchor"])
def llama(
    request: pytest.FixtureRequest, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LlamaCppTarget, LlamaCppDFlashDrafter]]:
    target = LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=(1, 3, 4))
    config = replace(config_of_file(tiny_pair / "drafter.gguf"), from_anchor=request.param)
    monkeypatch.setattr(drafting, "config_of_gguf", lambda _header: config)
    drafter = LlamaCppDFlashDrafter(tiny_pair / "drafter.gguf", target, threads=1)
    yield target, drafter
    drafter.close()
    target.close()


def test_llamacpp_drafts_like_torch(
    llama: tuple[LlamaCppTarget, LlamaCppDFlashDrafter], drafter: DFlashDrafter
) -> None:
    _, peer = llama
    drafter.model.config = peer.config
    rng = np.random.default_rng(4)
    same = slots = 0
    for block in range(40):
        count = int(rng.integers(1, 9))
        taps = taps_of(drafter, count, seed=block)
        for one in (peer, drafter):
            one.observe([7] * count, taps)
        anchor = int(rng.integers(0, 400))
        ours, theirs = drafter.propose(anchor, 99), peer.propose(anchor, 99)
        assert len(ours) == peer.config.drafts
        slots += len(ours)
        same += sum(a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True))
    assert same >= 0.9 * slots  # random weights give near ties; the trained pair is held to 0.99 below


def test_llamacpp_rollback_and_state(llama: tuple[LlamaCppTarget, LlamaCppDFlashDrafter]) -> None:
    _, drafter = llama
    taps = np.random.default_rng(0).normal(size=(30, 192)).astype(np.float32)
    drafter.observe([7] * 30, taps)
    expected, state = drafter.propose(3, 7), drafter.save()
    drafter.rollback(10)
    drafter.observe([7] * 20, taps[10:])
    assert drafter.propose(3, 7).tokens == expected.tokens
    drafter.rollback(0)
    drafter.load(state, [7] * 30)
    assert drafter.length == 30
    assert drafter.propose(3, 7).tokens == expected.tokens


def test_features_that_wait_are_cut_by_a_rollback(llama: tuple[LlamaCppTarget, LlamaCppDFlashDrafter]) -> None:
    _, drafter = llama
    taps = np.random.default_rng(0).normal(size=(30, 192)).astype(np.float32)
    drafter.observe([7] * 12, taps[:12])
    expected = drafter.propose(3, 7)
    drafter.rollback(0)
    drafter.observe([7] * 8, taps[:8])
    drafter.observe([7] * 22, taps[8:])
    drafter.rollback(12)
    assert drafter.length == 12
    assert drafter.propose(3, 7).tokens == expected.tokens
