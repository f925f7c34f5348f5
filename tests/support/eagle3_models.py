"""EAGLE-3 drafters of random weights as GGUF, and their proposals in float64, from the paper's description.

One layer reads the token's embedding and the previous state, each normed and concatenated. RoPE rotates neighbouring
channels, as in llama.cpp's files. A state is three features of the target through `fc`, or the previous output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.dflash_oracle import Array, norm
from tests.support.gguf_writing import add_metadata, finish, shape_numbers

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, EPS, THETA = 64, 96, 4, 2, 32, 1e-5, 1e4


@dataclass(frozen=True)
class Eagle3:
    """EAGLE-3 drafter. `embedding` and `head` [V, H] are the target's, used if it has none; `short`: its head's ids."""

    weights: dict[str, NDArray[np.float32]]
    embedding: NDArray[np.float32]
    head: NDArray[np.float32]
    taps: tuple[int, ...]
    short: tuple[int, ...] = ()
    norm_before_residual: bool = False

    def write(self, path: Path, vocabulary: int, tokens: Sequence[str] = (), **changes: Any) -> Path:
        """Write the file, without a tokenizer; `tokens` are its vocabulary."""
        writer = gguf.GGUFWriter(path, "eagle3")
        writer.add_tokenizer_model("none")
        if tokens:
            writer.add_token_list(list(tokens))
        shape = DecoderConfig(vocabulary, HIDDEN, 1, HEADS, KV_HEADS, HEAD_DIM, INNER, rms_norm_eps=EPS)
        numbers = shape_numbers(shape, 4096, THETA) | {
            "vocab_size": vocabulary,
            "rope.dimension_count": HEAD_DIM,
            "target_layers": [tap + 1 for tap in self.taps],
            "target_hidden_size": self.weights["fc.weight"].shape[1] // 3,
            "norm_before_residual": self.norm_before_residual,
        }
        for name, value in (numbers | changes).items():
            add_metadata(writer, f"eagle3.{name}", value)
        for name, values in self.weights.items():
            writer.add_tensor(name, values)
        if self.short:
            writer.add_tensor("d2t", np.array(self.short, np.int64))
        finish(writer)
        return path

    def propose(self, ids: Sequence[int], taps: NDArray[np.float32], anchor: int, count: int) -> list[Array]:
        """Return logits of every node over the target's vocabulary, after committed ids and their taps [T, 3 H]."""
        w = {name: value.astype(np.float64) for name, value in self.weights.items()}
        states, tokens = list(taps.astype(np.float64) @ w["fc.weight"].T), [*ids[1:], anchor]
        head = w.get("output.weight", self.head.astype(np.float64))
        found = []
        for _ in range(count):
            state = self._layer(w, tokens, np.array(states))
            logits = head @ norm(state, w["output_norm.weight"], EPS)
            spread = np.full(len(self.embedding), -np.inf)
            spread[list(self.short) or slice(None)] = logits
            found.append(spread)
            tokens.append(int(spread.argmax()))
            states.append(state)
        return found

    def _layer(self, w: dict[str, Array], tokens: Sequence[int], states: Array) -> Array:
        """Return the output [H] of the last pair."""
        embedding = w.get("token_embd.weight", self.embedding.astype(np.float64))
        normed = norm(states, w["blk.0.attn_norm_2.weight"], EPS)
        x = np.concatenate((norm(embedding[list(tokens)], w["blk.0.attn_norm.weight"], EPS), normed), 1)
        q, k = (_turned(x @ w[f"blk.0.attn_{name}.weight"].T) for name in "qk")
        v = (x @ w["blk.0.attn_v.weight"].T).reshape(len(x), KV_HEADS, HEAD_DIM)
        out = np.zeros((HEADS, HEAD_DIM))
        for h in range(HEADS):
            group = h // (HEADS // KV_HEADS)
            scores = k[:, group] @ q[-1, h] / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max())
            out[h] = weights @ v[:, group] / weights.sum()
        y = out.reshape(-1) @ w["blk.0.attn_output.weight"].T
        y = y + (normed[-1] if self.norm_before_residual else states[-1])
        u = norm(y, w["blk.0.ffn_norm.weight"], EPS)
        gate = w["blk.0.ffn_gate.weight"] @ u
        inner = gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up.weight"] @ u)
        found: Array = y + w["blk.0.ffn_down.weight"] @ inner
        return found


def _turned(x: Array) -> Array:
    """Apply RoPE to neighbouring channels of [T, heads, head_dim]."""
    x = x.reshape(len(x), -1, HEAD_DIM)
    angles = np.arange(len(x))[:, None] * THETA ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    turned = np.empty_like(x)
    turned[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    turned[..., 1::2] = x[..., 1::2] * cos + x[..., ::2] * sin
    return turned


def random_eagle3(
    embedding: NDArray[np.float32],
    head: NDArray[np.float32],
    taps: tuple[int, ...] = (0, 1, 2),
    own: bool = False,
    short: tuple[int, ...] = (),
    norm_before_residual: bool = False,
) -> Eagle3:
    """Return a drafter for a target with these tables [V, H]; `own`: the drafter has its own tables."""
    rng, vocabulary, hidden = np.random.default_rng(0), *embedding.shape

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (0.2 * rng.normal(size=(rows, columns))).astype(np.float32)

    def near_one(size: int) -> NDArray[np.float32]:
        return (1 + 0.3 * rng.normal(size=size)).astype(np.float32)

    weights = {
        "fc.weight": matrix(HIDDEN, 3 * hidden),
        "output_norm.weight": near_one(HIDDEN),
        "blk.0.attn_norm.weight": near_one(HIDDEN),
        "blk.0.attn_norm_2.weight": near_one(HIDDEN),
        "blk.0.attn_q.weight": matrix(HEADS * HEAD_DIM, 2 * HIDDEN),
        "blk.0.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "blk.0.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": near_one(HIDDEN),
        "blk.0.ffn_gate.weight": matrix(INNER, HIDDEN),
        "blk.0.ffn_up.weight": matrix(INNER, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, INNER),
    }
    if own:
        weights["token_embd.weight"] = 5 * matrix(vocabulary, HIDDEN)
    if own or short:
        weights["output.weight"] = matrix(len(short) or vocabulary, HIDDEN)
    return Eagle3(weights, embedding, head, taps, short, norm_before_residual)
