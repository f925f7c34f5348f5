"""Proposals of drafters of the DFlash family, from their specifications, in float64: one row, one key at a time.

Weights are named as in z-lab's state dicts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.models.shapes.dflash_config import DFlashConfig

Array = NDArray[np.float64]


def norm(x: Array, weight: Array, eps: float) -> Array:
    normed: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return normed


def sigmoid(x: Array) -> Array:
    between: Array = 1 / (1 + np.exp(-x))
    return between


def rope(x: Array, positions: Array, config: DFlashConfig) -> Array:
    """Apply rotate-half RoPE to [T, heads, hd]."""
    c = config.decoder
    half = x.shape[-1] // 2
    angles = positions[:, None] * c.rope_theta ** (-np.arange(half) / half)
    if c.rope_factors:
        angles = angles / np.array(c.rope_factors)
    cos, sin = np.cos(angles)[:, None] * c.rope_magnitude, np.sin(angles)[:, None] * c.rope_magnitude
    first, second = x[..., :half], x[..., half:]
    turned: Array = np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)
    return turned


class Oracle:
    """A drafter with the target's embedding and head [V, H], or only the head's rows of a short vocabulary."""

    def __init__(
        self, config: DFlashConfig, weights: Mapping[str, NDArray[Any]], embedding: Array, head: Array
    ) -> None:
        self.config, self.w = config, {name: value.astype(np.float64) for name, value in weights.items()}
        self.tokens = np.array(config.short or range(config.decoder.vocab_size))
        self.embedding = self.w["embed_tokens.weight"] if config.own_embedding else embedding
        self.head = self.w["lm_head.weight"] if config.own_head else head[self.tokens]

    def propose(self, taps: Array, anchor: int) -> tuple[list[int], list[float]]:
        """Return tokens and confidence of every proposing slot after a context of taps [T, n_taps * H]."""
        tokens, confidence = [anchor], []
        for state, logits in zip(*self.slots(taps, anchor), strict=True):
            row, probability = self.slot(tokens[-1], state, logits)
            tokens.append(int(self.tokens[row]))
            confidence.append(probability)
        return tokens[1:], confidence

    def slots(self, taps: Array, anchor: int) -> tuple[Array, Array]:
        """Return hidden states and logits of the slots that propose."""
        hidden = self.hidden(taps, anchor)[self.config.first_slot :]
        logits = hidden @ self.head.T * self.config.logit_scale
        if self.config.softcap:
            logits = np.tanh(logits / self.config.softcap) * self.config.softcap
        return hidden, logits

    def scores(self, previous: int, state: Array, logits: Array) -> Array:
        """Return the score of every row of the head after the token `previous`."""
        w = self.w
        if self.config.markov_rank:
            bias: Array = w["markov_head.markov_w2.weight"] @ w["markov_head.markov_w1.weight"][previous]
            return logits + bias
        if self.config.selector_rank:
            a, s = (w[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
            code = a[previous] * (w["candidate_selector.hidden_projection.weight"] @ state)
            score: Array = s[self.tokens] @ code
            return logits + score
        return logits

    def candidates(self, logits: Array) -> NDArray[np.intp]:
        """Return the rows of the head that a slot may propose, the likeliest first."""
        return np.argsort(-logits, kind="stable")[: self.config.selector_top_k or None]

    def slot(self, previous: int, state: Array, logits: Array) -> tuple[int, float]:
        """Return the row that a slot proposes after the token `previous`, and its confidence."""
        w = self.w
        rows = self.candidates(logits)
        scores = self.scores(previous, state, logits)[rows]
        best = int(scores.argmax())
        probability = 1 / np.exp(scores - scores[best]).sum()
        if self.config.has_confidence_head:
            features = np.concatenate((state, w["markov_head.markov_w1.weight"][previous]))
            probability = sigmoid(w["confidence_head.proj.weight"][0] @ features + w["confidence_head.proj.bias"][0])
        return int(rows[best]), float(probability)

    def hidden(self, taps: Array, anchor: int) -> Array:
        """Return the normed hidden states of all slots."""
        config, c, w = self.config, self.config.decoder, self.w
        start, size = len(taps), config.block_size
        fused = norm(taps @ w["fc.weight"].T, w["hidden_norm.weight"], c.rms_norm_eps)
        x = self.embedding[[anchor] + [config.mask_token_id] * (size - 1)] * config.embedding_scale
        for i in range(c.num_hidden_layers):
            p = f"layers.{i}."
            u = norm(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)
            sides = self.coefficients(p + "attention_conv.", u)
            out = self.attention(i, fused, self.convolved(u, sides, 0), start)
            x = x + self.convolved(out, sides, 1)
            u = norm(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
            sides = self.coefficients(p + "mlp_conv.", u)
            v = self.convolved(u, sides, 0)
            gate = v @ w[p + "mlp.gate_proj.weight"].T
            inner = gate * sigmoid(gate) * (v @ w[p + "mlp.up_proj.weight"].T)
            x = x + self.convolved(inner @ w[p + "mlp.down_proj.weight"].T, sides, 1)
        return norm(x, w["norm.weight"], c.rms_norm_eps)

    def coefficients(self, prefix: str, u: Array) -> Array | None:
        """Return [rows, side, back, channel] of a sublayer's convolutions."""
        if not self.config.conv_kernel:
            return None
        shape = (len(u), 2, self.config.conv_kernel, u.shape[1] // self.config.conv_group, 1)
        changes = (u @ self.w[prefix + "kernel_projection.weight"].T).reshape(shape)
        spread = np.broadcast_to(changes, (*shape[:-1], self.config.conv_group))
        coefficients: Array = self.w[prefix + "base_kernel"] + spread.reshape(*shape[:3], -1)
        return coefficients

    def convolved(self, x: Array, coefficients: Array | None, side: int) -> Array:
        if coefficients is None:
            return x
        out = np.zeros_like(x)
        for row in range(len(x)):
            for back in range(min(self.config.conv_kernel, row + 1)):
                out[row] += coefficients[row, side, back] * x[row - back]
        return out

    def attention(self, layer: int, fused: Array, u: Array, start: int) -> Array:
        config, c = self.config, self.config.decoder
        previous, block = np.arange(start, dtype=float), np.arange(start, start + len(u), dtype=float)
        kv, size = c.num_key_value_heads, len(u)
        q = self.heads(layer, u, "q", c.num_attention_heads, block)
        k = np.concatenate((self.heads(layer, fused, "k", kv, previous), self.heads(layer, u, "k", kv, block)))
        v = np.concatenate((self.heads(layer, fused, "v", kv, None), self.heads(layer, u, "v", kv, None)))
        out = np.zeros_like(q)
        for row in range(size):
            for h in range(c.num_attention_heads):
                seen = []
                for key in range(len(k)):
                    inside = key >= start
                    if inside and config.is_causal(layer) and key > start + row:
                        continue
                    if config.is_sliding(layer) and config.window and abs(start + row - key) >= config.window:
                        continue
                    seen.append(key)
                group = h // (c.num_attention_heads // kv)
                scores = k[seen, group] @ q[row, h] / np.sqrt(c.head_dim)
                weights = np.exp(scores - scores.max())
                out[row, h] = weights @ v[seen, group] / weights.sum()
        return self.product(f"layers.{layer}.self_attn.o_proj", out.reshape(size, -1))

    def heads(self, layer: int, rows: Array, name: str, count: int, at: Array | None) -> Array:
        c, prefix = self.config.decoder, f"layers.{layer}.self_attn.{name}"
        y = self.product(f"{prefix}_proj", rows).reshape(len(rows), count, c.head_dim)
        if at is None:
            return y
        return rope(norm(y, self.w[f"{prefix}_norm.weight"], c.rms_norm_eps), at, self.config)

    def product(self, name: str, rows: Array) -> Array:
        out: Array = rows @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0)
        return out
