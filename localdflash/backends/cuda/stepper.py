"""Everything of a pair that lives on the device, and the ways it can take a step.

A step is a fixed sequence of launches over static buffers, so that a CUDA graph can replay it: lengths, tokens and
decisions are in device memory and nothing is read back inside. The ways to step:

* `plain`   the anchor alone is verified
* `lookup`  what followed the last time that the text ended like this is verified
* `block`   the drafter fills a block; where lookup has a long match, its draft is verified instead
* `draft`   the drafter's block alone, to measure what it is worth

All of them verify with the same 16 rows, so that a token's bits never depend on the way it was reached. A prompt goes
through in two tiles of 16 rows, each with the bits of a step's rows.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from localdflash.backends.cuda.ops import Ops
from localdflash.backends.cuda.slot_drafters import Slots, chooser_of
from localdflash.backends.cuda.stack import ROWS, Mask, SharedBuffers, Stack, TapRing, activations
from localdflash.backends.cuda.weights import TAP_SCALE, DrafterWeights, TargetWeights
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, FIELDS, LIVE, SECOND
from localdflash.kernels.cuda.sample import SampleScratch
from localdflash.kernels.cuda.split_k import MOST_TILES

Way = Literal["plain", "lookup", "block", "draft"]

DRAFTING: tuple[Way, ...] = ("block", "draft")  # ways that run the drafter

SLACK = 4 * ROWS  # slots past the context: rows that were not accepted, and a step that is already on its way
RECORDS = 8  # steps that the record ring holds
RECORD_FIELDS = 24
DOCUMENTS = 1 << 16  # tokens of open documents that lookup may copy from
TAP_SLOTS = 1024  # committed tokens that may wait for the drafter
BEATS_DRAFTER = 6  # tokens of agreement from which lookup's draft replaces the drafter's
BEATS_NOTHING = 2  # the same where there is no other draft


class SamplingBuffers:
    """Buffers for requests that sample: their parameters, the logits of all rows, scratch memory."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.floats = torch.zeros(4, device=device)  # temperature, top_p, min_p, repetition penalty
        self.whole = torch.zeros(4, dtype=torch.int32, device=device)  # top_k, seed (low, high), penalty window
        self.logits = torch.zeros(ROWS, vocab_size, device=device)
        self.scratch = SampleScratch.empty(vocab_size, device)


class DrafterBlock:
    """The drafter: its stack, and the projection of tapped hidden states into its context."""

    def __init__(self, stepper: "Stepper", weights: DrafterWeights, slots: int, dtype: torch.dtype) -> None:
        config, c, device = weights.config, weights.config.decoder, stepper.device
        kv_dtype = torch.float32 if dtype == torch.float32 else torch.float16
        self.weights = weights
        self.cache = Cache.empty(c.num_hidden_layers, slots, c.num_key_value_heads, c.head_dim, kv_dtype, device)
        caches = [self.cache.layer(i) for i in range(c.num_hidden_layers)]
        self.stack = Stack(
            stepper.ops,
            c,
            weights.layers,
            weights.final_gain,
            weights.rope,
            caches,
            stepper.shared,
            stepper.field(LIVE),
            dtype,
        )
        self.masks = [
            Mask(
                "chain" if config.is_causal(i) else "block",
                config.block_size,
                config.window or 0 if config.is_sliding(i) else 0,
            )
            for i in range(c.num_hidden_layers)
        ]
        shape = (ROWS, config.proposed)
        self.slots = Slots(
            torch.zeros(shape, device=device) if weights.chooser else None,
            weights.head_ids,
            stepper.draft,
            stepper.choice,
            config.first_slot,
            min(config.drafts, ROWS - 1),
        )
        self.chooser = chooser_of(weights, self.stack, dtype)
        width = len(config.taps) * c.hidden_size
        self.ring = TapRing(torch.zeros(TAP_SLOTS, width, device=device, dtype=dtype), config.taps)
        self.taps, self.taps_sums = activations(width, device, dtype)
        self.fused, self.fused_sums = activations(c.hidden_size, device, dtype)
        self.fused_x = torch.zeros(ROWS, c.hidden_size, device=device)
        squares, unit = torch.zeros_like(self.stack.buffers.squares[0]), torch.zeros_like(self.stack.buffers.squares[0])
        eps = c.rms_norm_eps / TAP_SCALE**2  # fused taps are sixteenths too, and so is their norm
        unit[0] = c.hidden_size * (1.0 - eps)  # of rows that no norm has scaled
        self.norm = Norm(squares, unit, c.hidden_size, eps)


class Stepper:
    """Device memory and step sequences of one pair."""

    def __init__(
        self,
        ops: Ops,
        target: TargetWeights,
        drafter: DrafterWeights | None,
        context: int,
        shared: SharedBuffers,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
    ) -> None:
        self.ops, self.target, self.context, self.shared = ops, target, context, shared
        self.device = target.final_gain.device
        c, slots = target.config, context + SLACK
        self.cache = Cache.empty(c.num_hidden_layers, slots, c.num_key_value_heads, c.head_dim, kv_dtype, self.device)
        caches = [self.cache.layer(i) for i in range(c.num_hidden_layers)]
        self.masks = [Mask()] * c.num_hidden_layers
        self.state, self.tokens = self._int32(FIELDS), self._int32(slots)
        live = self.field(LIVE)
        layers, gain, rope = target.layers, target.final_gain, target.rope
        self.stack = Stack(ops, c, layers, gain, rope, caches, shared, live, dtype, MOST_TILES)
        self.draft, self.choice, self.prompt = self._int32(ROWS), self._int32(ROWS), self._int32(MOST_TILES, ROWS)
        self.documents, self.documents_length = self._int32(DOCUMENTS), self._int32(1)
        self.lookup_scratch = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.records = self._int32(RECORDS, RECORD_FIELDS)
        self.sampling = SamplingBuffers(c.vocab_size, self.device)
        self.block = DrafterBlock(self, drafter, slots, dtype) if drafter else None

    def _int32(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def field(self, index: int) -> Tensor:
        """Return a field of the state, int32 [1]."""
        return self.state[index : index + 1]

    def step(self, way: Way, greedy: bool, splits: int) -> None:
        """One round: draft, verify, choose the target's tokens, accept, record; attention covers `splits` chunks."""
        self._set_back()
        if way in DRAFTING:
            self._catch_up()
            self.fill_block(splits)
        else:
            self.ops.begin(self.tokens, self.state, self.draft, 0)
        if way in ("lookup", "block"):
            self._look_up(BEATS_DRAFTER if way == "block" else BEATS_NOTHING)
        self.verify(greedy, splits)
        self.ops.accept(self.draft, self.choice, self.tokens, self.state, self.records)

    def _look_up(self, min_match: int) -> None:
        documents, length, scratch = self.documents, self.documents_length, self.lookup_scratch
        self.ops.lookup(self.tokens, self.state, self.draft, documents, length, scratch, min_match, ROWS - 1)

    def _set_back(self) -> None:
        """A launch of before that was aborted, or lost a ticket, must not reach into what follows."""
        shared, chooser = self.shared, self.block.chooser if self.block else None
        counters = shared.workspace.counters, shared.scratch.counter, shared.head_scratch.counter, self.lookup_scratch
        self.ops.set_back(*counters, chooser.counters if chooser else None)

    def extend(self, tiles: int, splits: int) -> None:
        """Keys, values and taps of one or two tiles of 16 tokens from CONTEXT on; the caller counts the prompt's."""
        self._set_back()
        self.ops.next_tokens(self.tokens, self.state, self.prompt)
        ids = [self.prompt[tile] for tile in range(tiles)]
        self._compute(ids, (self.field(CONTEXT), self.field(SECOND))[:tiles], splits)

    def forward(self, splits: int) -> None:
        """The target over the 16 rows of `draft`, from CONTEXT on: its last hidden states, its cache, its taps."""
        self._compute((self.draft,), (self.field(CONTEXT),), splits)

    def _compute(self, ids: Sequence[Tensor], starts: Sequence[Tensor], splits: int) -> None:
        self.stack.embed(ids, self.target.embedding)
        self.stack.forward(starts, self.masks, splits, self.block.ring if self.block else None)

    def verify(self, greedy: bool, splits: int) -> None:
        """The target's token after each of the 16 rows of `draft`, in `choice`."""
        self.forward(splits)
        b, start, sampling = self.stack.buffers, self.field(CONTEXT), self.sampling
        self.ops.head(
            b.hidden,
            b.hidden_sums,
            self.target.head,
            self.stack.final_norm,
            self.choice,
            self.shared.head_scratch,
            logits=None if greedy else sampling.logits,
        )
        if not greedy:
            s = sampling
            self.ops.sample(s.logits, s.floats, s.whole, self.tokens, self.draft, start, self.choice, s.scratch)

    def set_sampling(self, floats: Sequence[float], whole: Sequence[int]) -> None:
        """Set the parameters of the request that steps next, in the order of `SamplingBuffers`."""
        self.sampling.scratch.seen.zero_()  # see `_set_back`
        self.sampling.floats.copy_(torch.tensor(floats))
        self.sampling.whole.copy_(torch.tensor(whole, dtype=torch.int32))

    def catch_up(self) -> None:
        """Give the drafter the next 16 committed tokens' taps; slots past CONTEXT are written over later."""
        self._set_back()
        self._catch_up()

    def _catch_up(self) -> None:
        block = self.block
        assert block is not None
        ops, weights, b, start = self.ops, block.weights, block, self.field(DRAFTER)
        ops.gather_taps(b.ring.ring, start, b.taps, b.taps_sums)
        ops.residual(
            b.taps,
            b.taps_sums,
            weights.fuse,
            b.fused_x,
            weights.fuse_gain,
            None,
            b.fused,
            b.fused_sums,
            b.norm.squares,
            self.shared.workspace,
            add=False,
        )
        for heads in weights.context:
            ops.qkv(
                b.fused,
                b.fused_sums,
                heads.planes,
                b.norm,
                heads.part,
                None,
                weights.context_gain,
                weights.rope,
                start,
                None,
                b.cache,
                self.shared.workspace,
                bias=heads.bias,
                eps=weights.config.decoder.rms_norm_eps,
            )
        ops.caught_up(self.state)

    def fill_block(self, splits: int) -> None:
        """Write the drafter's proposals into the slots after the anchor."""
        block = self.block
        assert block is not None
        config, stack, slots = block.weights.config, block.stack, block.slots
        self.ops.begin(self.tokens, self.state, self.draft, config.mask_token_id)
        stack.embed((self.draft,), block.weights.embedding, config.embedding_scale)
        stack.forward((self.field(CONTEXT),), block.masks, splits)
        self.ops.head(
            stack.buffers.hidden,
            stack.buffers.hidden_sums,
            block.weights.head,
            stack.final_norm,
            slots.choice,
            self.shared.head_scratch,
            logits=slots.logits,
            scale=config.logit_scale,
            softcap=config.softcap,
            ids=slots.ids,
        )
        if block.chooser:
            block.chooser.choose(slots)
        self.ops.propose(slots.choice, self.state, slots.draft, slots.first, slots.count)
