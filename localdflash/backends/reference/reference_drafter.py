"""DFlash, DSpark and DFlash 2 drafters of the reference backend, in torch."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from localdflash.backends.reference.dflash_model import DFlash, block_mask
from localdflash.base.errors import LocaldflashError
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures

# (previous token, hidden state [H], logits [R]) -> tokens [n], their logits [n], confidence (None: the softmax).
# R: rows of the drafter's LM head, V or the size of a reduced vocabulary
Score = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


class DFlashDrafter:
    """See `Drafter`. `embedding` and `head` [V, H] are the target's, for a drafter without its own."""

    name = "dflash"
    is_model = True

    def __init__(self, model: DFlash, embedding: Tensor, head: Tensor) -> None:
        self.model = model
        self.max_draft_tokens = model.config.drafts
        c = model.config.decoder
        self._tokens = torch.tensor(model.config.short or range(c.vocab_size))  # token ids of the head's rows
        by_kind: dict[str, Score] = {"dspark": self._by_markov, "dflash2": self._by_selector}
        self._score = by_kind.get(model.config.kind, lambda _before, _state, logits: (self._tokens, logits, None))
        self._embedding = model.embed_tokens.weight if model.config.own_embedding else embedding
        rows = head[self._tokens] if model.config.short else head
        self._head = model.lm_head.weight if model.config.own_head else rows
        shape = (c.num_hidden_layers, 2, c.num_key_value_heads, 0, c.head_dim)
        self.kv_cache = torch.empty(shape)  # KV cache [layers, k and v, kv_heads, observed tokens, hd]

    @property
    def length(self) -> int:
        """Number of observed tokens."""
        return self.kv_cache.shape[3]

    @property
    def cache_bytes(self) -> int:
        """Size in bytes of what is kept of the observed tokens."""
        return self.kv_cache.nbytes

    @property
    def weight_bytes(self) -> int:
        """Size in bytes of the weights, including the embedding and head in use, its own or the target's."""
        weights = [*self.model.parameters(), self._embedding, self._head]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in weights}.values())

    @torch.inference_mode()
    def observe(self, ids: Sequence[int], features: TargetFeatures | None) -> None:
        """See `Drafter`."""
        if features is None:
            raise LocaldflashError("dflash: no hidden-state features; the target's taps are off")
        positions = torch.arange(self.length, self.length + len(ids))
        rows = torch.from_numpy(np.array(features)).unsqueeze(0)
        new_entries = self.model.context(rows, positions)
        stacked = torch.stack([torch.stack((k[0], v[0])) for k, v in new_entries])
        self.kv_cache = torch.cat((self.kv_cache, stacked), 3)

    @torch.inference_mode()
    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the token's softmax probability, or the output of a confidence head."""
        if limit < 1:
            return EMPTY_DRAFT
        hidden, logits = self._run_block(anchor, limit)
        tokens, confidence = [anchor], list[float]()
        for state, scores in zip(hidden, logits, strict=False):
            candidates, scored, predicted = self._score(tokens[-1], state, scores)
            best = scored.softmax(-1).max(-1)
            tokens.append(int(candidates[int(best.indices)]))
            confidence.append(float(best.values if predicted is None else predicted))
        return Draft(self.name, tokens[1:], confidence)

    def _run_block(self, anchor: int, limit: int) -> tuple[Tensor, Tensor]:
        """Return hidden states [slots, H] of the proposing slots, and logits [limit, R] of the first `limit` slots."""
        config, start = self.model.config, self.length
        ids = torch.tensor([anchor] + [config.mask_token_id] * (config.block_size - 1))
        cached_positions = torch.arange(start)
        masks = [
            block_mask(config, i, start, config.block_size, cached_positions)
            for i in range(config.decoder.num_hidden_layers)
        ]
        context = [(layer[0].unsqueeze(0), layer[1].unsqueeze(0)) for layer in self.kv_cache]
        positions = torch.arange(start, start + config.block_size)
        hidden = self.model(self._embedding[ids].unsqueeze(0), positions, context, masks)[0, config.first_slot :]
        return hidden, self.model.logits(hidden[:limit], self._head)

    def _by_markov(self, previous: int, state: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        embedded = self.model.markov_head.markov_w1.weight[previous]
        predicted = self.model.confidence_head(state, embedded) if self.model.config.has_confidence_head else None
        return self._tokens, logits + self.model.markov_head(embedded), predicted

    def _by_selector(self, previous: int, state: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, None]:
        candidates = logits.topk(self.model.config.selector_top_k)
        tokens = self._tokens[candidates.indices]
        return tokens, candidates.values + self.model.candidate_selector(state, previous, tokens), None

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        self.kv_cache = self.kv_cache[:, :, :, :length]

    def save(self) -> bytes:
        """See `Drafter`."""
        return self.kv_cache.contiguous().numpy().tobytes()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        layers, kinds, heads, _, size = self.kv_cache.shape
        flat = torch.from_numpy(np.frombuffer(state, np.float32).copy())
        self.kv_cache = flat.reshape(layers, kinds, heads, len(ids), size)
