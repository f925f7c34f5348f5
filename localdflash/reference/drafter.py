"""DFlash drafting in torch: the readable reference, and the drafter of the torch backend.

Context keys and values are projected once, when a token is committed; a block's own are thrown away after each draft.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from localdflash.engine.draft import NOTHING, Draft
from localdflash.engine.pair import Taps
from localdflash.errors import LocaldflashError
from localdflash.reference.dflash_model import DFlash, block_mask


class DFlashDrafter:
    """See `Drafter`. `embedding` and `head` are the target's, [V, H]; a short vocabulary takes its rows of the head."""

    name = "dflash"
    reads_taps = True

    def __init__(self, model: DFlash, embedding: Tensor, head: Tensor) -> None:
        self.model = model
        self.longest = model.config.drafts
        self._tokens = torch.tensor(model.config.short or range(len(head)))  # of the head's rows
        self._embedding, self._head = embedding, head[self._tokens] if model.config.short else head
        c = model.config.decoder
        shape = (c.num_hidden_layers, 2, c.num_key_value_heads, 0, c.head_dim)
        self.context = torch.empty(shape)  # [layers, k and v, kv_heads, committed, hd]

    @property
    def length(self) -> int:
        """Committed tokens observed."""
        return self.context.shape[3]

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, and of the target's embedding and head."""
        weights = [*self.model.parameters(), self._embedding, self._head]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in weights}.values())

    @torch.inference_mode()
    def observe(self, ids: Sequence[int], taps: Taps | None) -> None:
        """See `Drafter`."""
        if taps is None:
            raise LocaldflashError("DFlash was given no hidden states: the target's taps are off")
        positions = torch.arange(self.length, self.length + len(ids))
        fresh = self.model.context(torch.from_numpy(np.array(taps)).unsqueeze(0), positions)
        stacked = torch.stack([torch.stack((k[0], v[0])) for k, v in fresh])
        self.context = torch.cat((self.context, stacked), 3)

    @torch.inference_mode()
    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the softmax probability of the slot's best token."""
        config, start = self.model.config, self.length
        if limit < 1:
            return NOTHING
        ids = torch.tensor([anchor] + [config.mask_token_id] * (config.block_size - 1))
        known = torch.arange(start)
        masks = [
            block_mask(config, i, start, config.block_size, known) for i in range(config.decoder.num_hidden_layers)
        ]
        context = [(layer[0].unsqueeze(0), layer[1].unsqueeze(0)) for layer in self.context]
        positions = torch.arange(start, start + config.block_size)
        hidden = self.model(self._embedding[ids].unsqueeze(0), positions, context, masks)[0, config.first_slot :]
        best = self.model.logits(hidden, self._head).softmax(-1).max(-1)
        return Draft(self.name, self._tokens[best.indices].tolist()[:limit], best.values.tolist()[:limit])

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        self.context = self.context[:, :, :, :length]

    def save(self) -> bytes:
        """See `Drafter`."""
        return self.context.contiguous().numpy().tobytes()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        layers, kinds, heads, _, size = self.context.shape
        flat = torch.from_numpy(np.frombuffer(state, np.float32).copy())
        self.context = flat.reshape(layers, kinds, heads, len(ids), size)
