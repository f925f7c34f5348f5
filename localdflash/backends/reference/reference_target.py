"""Target of the reference backend: the torch decoder in float32.

Matrix products always have 16 rows (tokens) and each row attends separately, so logits are the same bits in any batch.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder
from localdflash.engine.draft import EMPTY_DRAFT, MAX_DRAFT_TOKENS, Draft
from localdflash.engine.pair import TargetFeatures, Verification
from localdflash.models.memory.fit import check_context

TILE = 16  # rows of every matrix product


class TorchTarget:
    """See `Target`. `taps` are the 0-based layers whose outputs are features."""

    is_recurrent, max_width = False, MAX_DRAFT_TOKENS + 1

    def __init__(self, model: Decoder, context: int = 0, taps: Sequence[int] = ()) -> None:
        c = model.config
        self.model = model
        check_context(context, c.context_length)
        self.context = context or c.context_length
        self.taps = tuple(taps)
        self.vocab_size = c.vocab_size
        self.length = 0
        shape = (c.num_hidden_layers, c.num_key_value_heads, self.context, c.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._newest: list[tuple[Tensor, Tensor]] = []  # per layer: k and v [kv_heads, rows, hd] of the last forward

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        """See `Target`."""
        _, features = self._forward(ids)
        self.keep(len(ids))
        return features

    def verify(self, anchor: int, draft: Draft = EMPTY_DRAFT) -> Verification:
        """See `Target`."""
        hidden, features = self._forward([anchor, *draft.tokens])
        with torch.inference_mode():
            logits = [self.model.logits(tile) for tile in hidden.split(TILE)]
        return Verification(torch.cat(logits)[: len(draft) + 1].numpy(), features)

    @torch.inference_mode()
    def keep(self, rows: int) -> None:
        """See `Target`."""
        end = self.length + rows
        for layer, (k, v) in enumerate(self._newest):
            self._keys[layer, :, self.length : end] = k[:, :rows]
            self._values[layer, :, self.length : end] = v[:, :rows]
        self.length = end

    def end_prompt(self) -> None:
        """See `Target`."""

    def crop(self, length: int) -> None:
        """See `Target`."""
        self.length = length

    def assume_length(self, length: int) -> bool:
        """See `Target`."""
        return False

    def save(self) -> bytes:
        """See `Target`."""
        kept = (part[:, :, : self.length].contiguous() for part in (self._keys, self._values))
        return b"".join(part.numpy().tobytes() for part in kept)

    def load(self, state: bytes, length: int) -> None:
        """See `Target`."""
        layers, heads, _, size = self._keys.shape
        both = torch.from_numpy(np.frombuffer(bytearray(state), np.float32)).view(2, layers, heads, length, size)
        self._keys[:, :, :length], self._values[:, :, :length] = both[0], both[1]
        self.length = length

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int]) -> tuple[Tensor, TargetFeatures | None]:
        """Return normed hidden states [padded rows, H] and features [rows, n_taps * H] of the next tokens."""
        outputs, features = [], []
        self._newest = []
        for start in range(0, len(ids), TILE):
            rows = range(start, min(start + TILE, len(ids)))
            padding = TILE - len(rows)
            tile = torch.tensor([[ids[r] for r in rows] + [0] * padding])
            positions = torch.tensor([self.length + r for r in rows] + [0] * padding)
            hidden, tapped = self.model(tile, positions, partial(self._attend, rows), self.taps)
            outputs.append(hidden[0])
            features.append(torch.cat(tapped, -1)[0, : len(rows)] if tapped else torch.empty(len(rows), 0))
        return torch.cat(outputs), torch.cat(features).numpy() if self.taps else None

    def _attend(self, rows: range, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new_k, new_v = k[0, :, : len(rows)], v[0, :, : len(rows)]  # [kv_heads, rows, hd]
        if layer < len(self._newest):
            new_k = torch.cat((self._newest[layer][0], new_k), 1)
            new_v = torch.cat((self._newest[layer][1], new_v), 1)
            self._newest[layer] = (new_k, new_v)
        else:
            self._newest.append((new_k, new_v))
        out = torch.zeros_like(q)
        for i, row in enumerate(rows):
            keys = torch.cat((self._keys[layer, :, : self.length], new_k[:, : row + 1]), 1)
            values = torch.cat((self._values[layer, :, : self.length], new_v[:, : row + 1]), 1)
            out[:, :, i : i + 1] = F.scaled_dot_product_attention(
                q[:, :, i : i + 1], keys.unsqueeze(0), values.unsqueeze(0), enable_gqa=True
            )
        return out
