"""Device memory of a pair, and its steps: fixed sequences of launches over static buffers, for CUDA graphs.

* `plain`   verifies only the anchor: the newest token, not yet in the KV cache
* `lookup`  verifies a prompt-lookup draft
* `block`   verifies the drafter's block, or a long lookup match
* `draft`   verifies the drafter's block only, to measure it

All modes verify 16 rows, so a token's bits do not depend on the mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from localdflash.backends.cuda.ops import Ops
from localdflash.backends.cuda.prompt_reader import new_reader
from localdflash.backends.cuda.stack import ROWS, Mask, SharedBuffers, Stack, TapRing, activations
from localdflash.backends.cuda.weights import ACTIVATION_SCALE, DrafterWeights, Markov, Selector, TargetWeights
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, FIELDS, LIVE, SECOND
from localdflash.kernels.cuda.sample import SampleScratch
from localdflash.kernels.cuda.selector import TopKScratch
from localdflash.kernels.cuda.split_k import MAX_TILES


@dataclass(frozen=True)
class Slots:
    """Outputs of the drafter's LM head for the draft positions (slots) of a block, and the draft to write."""

    logits: Tensor | None  # float32 [16, rows of the LM head]; None: the likeliest tokens are final
    ids: Tensor | None  # int32 [rows of the LM head]: token ids, if the head covers only a part of the vocabulary
    draft: Tensor  # int32 [16], the anchor first
    choice: Tensor  # int32 [16], chosen token by slot
    first: int  # slot of the first proposed token
    count: int  # number of slots that propose a token


class MarkovChain:
    """DSpark's token choice: each token's logits get a bias by the previous token; see kernels/cuda/markov.py."""

    counters: Tensor | None = None  # `markov_slot` uses the LM head's counter

    def __init__(self, weights: Markov, stack: Stack, dtype: torch.dtype) -> None:
        self._weights, self._stack = weights, stack
        width, device = weights.table.shape[1], weights.table.device
        self._a = torch.zeros(ROWS, width, device=device, dtype=dtype)
        self._sums = torch.zeros(width // 32, ROWS, device=device)

    def choose(self, slots: Slots) -> None:
        """Choose the slots' tokens again, one after another, each given the token before it; write `slots.choice`."""
        ops, weights, row = self._stack.ops, self._weights, (self._a, self._sums)
        ops.markov_anchor(weights.table, slots.draft, *row)
        for slot in range(slots.first, slots.first + slots.count):
            end = (slots.choice, self._stack.shared.head_scratch, slots.ids)
            ops.markov_slot(*row, weights.bias, weights.table, slots.logits, slot, *end)


class Selection:
    """DFlash 2's token choice among the top-k candidates of each slot; see kernels/cuda/selector.py."""

    def __init__(self, weights: Selector, stack: Stack, rows: int, candidates: int) -> None:
        device = weights.predecessors.device
        self._weights, self._stack = weights, stack
        self._projected = torch.zeros(ROWS, weights.projection.n, device=device)
        self._values = torch.zeros(ROWS, candidates, device=device)
        self._tokens = torch.zeros(ROWS, candidates, dtype=torch.int32, device=device)
        self._scratch = TopKScratch(device, rows)
        self.counters = self._scratch.counters

    def choose(self, slots: Slots) -> None:
        """See `MarkovChain.choose`."""
        ops, b, weights, norm = self._stack.ops, self._stack.buffers, self._weights, self._stack.final_norm
        ops.top_k(slots.logits, self._values, self._tokens, self._scratch, slots.ids)
        ops.matmul(b.hidden, b.hidden_sums, weights.projection, self._projected, self._stack.shared.workspace, norm)
        found = (self._values, self._tokens, self._projected, weights.predecessors, weights.successors)
        ops.select(*found, slots.draft, slots.choice, slots.first, slots.count)


StepMode = Literal["plain", "lookup", "block", "draft"]

DRAFTING: tuple[StepMode, ...] = ("block", "draft")  # modes that run the drafter

SLACK = 4 * ROWS  # KV cache positions past the context, for rejected rows and a step in flight
RECORDS = 8  # steps whose records the ring buffer holds
RECORD_FIELDS = 24
DOCUMENTS = 1 << 16  # maximum tokens of open documents, which lookup may copy from
TAP_SLOTS = 1024  # committed tokens whose features (taps) are kept for the drafter
MIN_MATCH_OVER_DRAFTER = 6  # minimum tokens of a lookup match that replaces the drafter's block
MIN_MATCH = 2  # minimum tokens of a lookup match if there is no other draft


class SamplingBuffers:
    """Buffers for sampling: the request's parameters, the logits of all rows, scratch memory."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.floats = torch.zeros(4, device=device)  # temperature, top_p, min_p, repetition penalty
        self.integers = torch.zeros(4, dtype=torch.int32, device=device)  # top_k, seed (low, high), penalty window
        self.logits = torch.zeros(ROWS, vocab_size, device=device)
        self.scratch = SampleScratch.empty(vocab_size, device)


class DeviceDrafter:
    """Drafter on the device: its stack, and the projection of the target's features into its KV cache."""

    def __init__(self, stepper: "Stepper", weights: DrafterWeights, capacity: int, dtype: torch.dtype) -> None:
        config, c, device = weights.config, weights.config.decoder, stepper.device
        kv_dtype = torch.float32 if dtype == torch.float32 else torch.float16
        self.weights = weights
        self.cache = Cache.empty(c.num_hidden_layers, capacity, c.num_key_value_heads, c.head_dim, kv_dtype, device)
        self.stack = Stack(stepper.ops, c, weights, self.cache, stepper.shared, stepper.field(LIVE), dtype)
        self.masks = [
            Mask(
                "chain" if config.is_causal(i) else "block",
                config.block_size,
                config.window or 0 if config.is_sliding(i) else 0,
            )
            for i in range(c.num_hidden_layers)
        ]
        shape = (ROWS, config.draft_vocab_size)
        self.slots = Slots(
            torch.zeros(shape, device=device) if weights.chooser else None,
            weights.head_ids,
            stepper.draft,
            stepper.choice,
            config.first_slot,
            min(config.drafts, ROWS - 1),
        )
        self.chooser: MarkovChain | Selection | None = None
        if isinstance(weights.chooser, Markov):
            self.chooser = MarkovChain(weights.chooser, self.stack, dtype)
        elif isinstance(weights.chooser, Selector):
            self.chooser = Selection(weights.chooser, self.stack, config.draft_vocab_size, config.selector_top_k)
        width = len(config.taps) * c.hidden_size
        self.ring = TapRing(torch.zeros(TAP_SLOTS, width, device=device, dtype=dtype), config.taps)
        self.taps, self.taps_sums = activations(width, device, dtype)
        self.fused, self.fused_sums = activations(c.hidden_size, device, dtype)
        self.fused_x = torch.zeros(ROWS, c.hidden_size, device=device)
        squares, unit = torch.zeros_like(self.stack.buffers.squares[0]), torch.zeros_like(self.stack.buffers.squares[0])
        eps = c.rms_norm_eps / ACTIVATION_SCALE**2  # the fused taps are divided by 16, too
        unit[0] = c.hidden_size * (1.0 - eps)  # squares whose rstd is 1: no earlier norm has scaled the rows
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
        c, capacity, kv_heads = target.config, context + SLACK, target.config.num_key_value_heads
        self.cache = Cache.empty(c.num_hidden_layers, capacity, kv_heads, c.head_dim, kv_dtype, self.device)
        self.masks = [Mask()] * c.num_hidden_layers
        self.state, self.tokens = self._int32(FIELDS), self._int32(capacity)
        self.stack = Stack(ops, c, target, self.cache, shared, self.field(LIVE), dtype, MAX_TILES)
        self.draft, self.choice, self.prompt = self._int32(ROWS), self._int32(ROWS), self._int32(MAX_TILES, ROWS)
        self.documents, self.documents_length = self._int32(DOCUMENTS), self._int32(1)
        self.lookup_scratch = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.records = self._int32(RECORDS, RECORD_FIELDS)
        self.sampling = SamplingBuffers(c.vocab_size, self.device)
        self.drafter = DeviceDrafter(self, drafter, capacity, dtype) if drafter else None
        taps = self.drafter.ring if self.drafter else None
        self.reader = new_reader(self.stack, target, self.cache, taps, dtype)

    def _int32(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def field(self, index: int) -> Tensor:
        """Return a field of the state, int32 [1]."""
        return self.state[index : index + 1]

    def step(self, mode: StepMode, greedy: bool, splits: int) -> None:
        """Draft, verify, choose the target's tokens, accept and record; attention covers `splits` chunks."""
        self._reset_counters()
        if mode in DRAFTING:
            self._catch_up()
            self.draft_block(splits)
        else:
            self.ops.begin(self.tokens, self.state, self.draft, 0)
        if mode in ("lookup", "block"):
            self._look_up(MIN_MATCH_OVER_DRAFTER if mode == "block" else MIN_MATCH)
        self.verify(greedy, splits)
        self.ops.accept(self.draft, self.choice, self.tokens, self.state, self.records)

    def _look_up(self, min_match: int) -> None:
        documents, length, scratch = self.documents, self.documents_length, self.lookup_scratch
        self.ops.lookup(self.tokens, self.state, self.draft, documents, length, scratch, min_match, ROWS - 1)

    def _reset_counters(self) -> None:
        """Reset the kernels' counters, so that an aborted launch does not affect the next one."""
        shared, chooser = self.shared, self.drafter.chooser if self.drafter else None
        counters = shared.workspace.counters, shared.scratch.counter, shared.head_scratch.counter, self.lookup_scratch
        self.ops.set_back(*counters, chooser.counters if chooser else None)

    def extend(self, tiles: int, splits: int) -> None:
        """Compute K, V and taps of one or two tiles of 16 tokens from CONTEXT on; the caller must advance CONTEXT."""
        self._reset_counters()
        self.ops.next_tokens(self.tokens, self.state, self.prompt)
        ids = [self.prompt[tile] for tile in range(tiles)]
        self._compute(ids, (self.field(CONTEXT), self.field(SECOND))[:tiles], splits)

    def prefill_block(self, size: int) -> None:
        """Compute K, V and taps of `size` tokens of the prompt from CONTEXT on; the caller must advance CONTEXT."""
        assert self.reader
        self._reset_counters()
        self.reader.prefill_block(self.tokens, self.state, size)

    def forward(self, splits: int) -> None:
        """Run the target over the 16 rows of `draft` from CONTEXT on, into hidden states, KV cache and taps."""
        self._compute((self.draft,), (self.field(CONTEXT),), splits)

    def _compute(self, ids: Sequence[Tensor], starts: Sequence[Tensor], splits: int) -> None:
        self.stack.embed(ids, self.target.embedding)
        self.stack.forward(starts, self.masks, splits, self.drafter.ring if self.drafter else None)

    def verify(self, greedy: bool, splits: int) -> None:
        """Write the target's token after each of the 16 rows of `draft` to `choice`."""
        self.forward(splits)
        start, sampling = self.field(CONTEXT), self.sampling
        self.stack.lm_head(self.target.head, self.choice, None if greedy else sampling.logits)
        if not greedy:
            s = sampling
            self.ops.sample(s.logits, s.floats, s.integers, self.tokens, self.draft, start, self.choice, s.scratch)

    def set_sampling(self, floats: Sequence[float], integers: Sequence[int]) -> None:
        """Set the sampling parameters of all later steps, in the order of `SamplingBuffers`."""
        self.sampling.scratch.seen.zero_()  # an aborted launch may have left bits
        self.sampling.floats.copy_(torch.tensor(floats))
        self.sampling.integers.copy_(torch.tensor(integers, dtype=torch.int32))

    def catch_up(self) -> None:
        """Let the drafter read the taps (features) of up to 16 tokens from DRAFTER on, and advance DRAFTER."""
        self._reset_counters()
        self._catch_up()

    def _catch_up(self) -> None:
        drafter = self.drafter
        assert drafter is not None
        ops, weights, b, start = self.ops, drafter.weights, drafter, self.field(DRAFTER)
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
        for projection in weights.context:
            drafter.stack.project(
                b.fused, b.fused_sums, projection, b.norm, (None, weights.context_gain), start, None, b.cache
            )
        ops.caught_up(self.state)

    def draft_block(self, splits: int) -> None:
        """Write the anchor and the drafter's proposals to `draft`."""
        drafter = self.drafter
        assert drafter is not None
        config, stack, slots = drafter.weights.config, drafter.stack, drafter.slots
        self.ops.begin(self.tokens, self.state, self.draft, config.mask_token_id)
        stack.embed((self.draft,), drafter.weights.embedding, config.embedding_scale)
        stack.forward((self.field(CONTEXT),), drafter.masks, splits)
        options = {"scale": config.logit_scale, "softcap": config.softcap, "ids": slots.ids}
        stack.lm_head(drafter.weights.head, slots.choice, slots.logits, **options)
        if drafter.chooser:
            drafter.chooser.choose(slots)
        self.ops.propose(slots.choice, self.state, slots.draft, slots.first, slots.count)
