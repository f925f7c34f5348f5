"""Target on the CPU engine: integer products, a KV cache in float16, int8 or k8v4, states of delta nets.

A token's logits are bit-identical for every batch width and number of threads. So greedy output is identical for any
draft, any chunking of the prompt and any reuse of the cache.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import bind_layers, bind_matrix, bind_shape, rope_tables, why_unsupported
from localdflash.backends.cpu.cpu_kv_cache import KVCache
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, address, allocate_aligned
from localdflash.backends.cpu.packed_file import Layer, PackedModel
from localdflash.backends.cpu.packing import Floats
from localdflash.base.errors import LocaldflashError, ModelError, UsageError
from localdflash.engine.checkpoints import MAX_CHECKPOINTS, Checkpoints
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures, Verification
from localdflash.engine.sampling import NOT_NUMBERS
from localdflash.models.memory.fit import check_context
from localdflash.models.shapes.decoder_config import DecoderConfig, DeltaShape


class DeltaStates:
    """Recurrent states of a target's delta nets, their checkpoints, and the structs that the kernels read."""

    def __init__(self, config: DecoderConfig, layers: Sequence[Layer]) -> None:
        assert config.delta is not None
        d, nets = config.delta, [layer for layer in layers if "mixed" in layer]
        self.progress = cpu_library.ProgressStruct(0, 0)  # tokens in the states, and later rows whose inputs are stored
        self._history_rows = d.kernel - 1
        self._state: Floats = allocate_aligned((len(nets), d.v_heads, d.v_dim // 16, d.k_dim, 16), np.float32)
        self._history: Floats = allocate_aligned((len(nets), self._history_rows + MAX_ROWS, d.mixed), np.float32)
        self._gates: Floats = allocate_aligned((2, len(nets), MAX_ROWS, d.v_heads), np.float32)
        self._conv = [np.ascontiguousarray(net["conv"].T) for net in nets]
        self.nets = [self._bind_net(i, net) for i, net in enumerate(nets)]
        self._checkpoints = Checkpoints[tuple[Floats, Floats]]()

    def _bind_net(self, index: int, net: Layer) -> cpu_library.DeltaNetStruct:
        bound = cpu_library.DeltaNetStruct()
        bound.mixed, bound.gate = bind_matrix(net["mixed"]), bind_matrix(net["mixed_gate"])
        bound.alpha, bound.beta = bind_matrix(net["alpha"]), bind_matrix(net["beta"])
        bound.conv, bound.norm = address(self._conv[index]), address(net["delta_norm"])
        bound.rate, bound.shift = address(net["rate"]), address(net["shift"])
        bound.state, bound.history = address(self._state[index]), address(self._history[index])
        bound.decays, bound.betas = address(self._gates[0, index]), address(self._gates[1, index])
        return bound

    @property
    def nbytes(self) -> int:
        """Size in bytes, checkpoints included."""
        arrays = (self._state, self._history, self._gates, *self._conv)
        copies = sum(array.nbytes for state in self._checkpoints.states for array in state)
        return sum(array.nbytes for array in arrays) + copies

    def checkpoint(self, prompt_ended: bool) -> None:
        """Add a checkpoint if a prompt ended at this length or the last checkpoint is far enough away."""
        length = self.progress.base
        if self._checkpoints.should_add(length, prompt_ended):
            self._checkpoints.add(length, (self._state.copy(), self._history[:, : self._history_rows].copy()))

    def roll_back(self, length: int) -> int:
        """Go back to `length` tokens, or to a shorter checkpoint if that is impossible; return the length reached."""
        self._checkpoints.drop_after(length)
        if length == 0 or 0 <= length - self.progress.base <= self.progress.rows:
            return length
        if (longest := self._checkpoints.longest()) is None:
            return 0
        checkpoint_length, state = longest
        self._restore(*state, checkpoint_length)
        return checkpoint_length

    def assume(self, length: int) -> None:
        """Set the number of tokens without changing the states: after `_restore`, or to time a longer context."""
        self.progress.base, self.progress.rows = length, 0

    @property
    def saved_bytes(self) -> int:
        """Size in bytes of the result of `save`."""
        return self._state.nbytes + self._history[:, : self._history_rows].nbytes

    def save(self) -> bytes:
        """Return the states, for `load`; they must include all committed tokens."""
        return self._state.tobytes() + self._history[:, : self._history_rows].tobytes()

    def load(self, saved: bytes, length: int) -> None:
        """Restore saved states; ValueError if the size does not match."""
        numbers, size = np.frombuffer(saved, np.float32), self._state.size
        history = self._history[:, : self._history_rows].shape
        self._checkpoints = Checkpoints()
        self._restore(numbers[:size].reshape(self._state.shape), numbers[size:].reshape(history), length)

    def _restore(self, state: Floats, history: Floats, length: int) -> None:
        self._state[...], self._history[:, : self._history_rows] = state, history
        self.assume(length)


def state_bytes(delta: DeltaShape, layers: int) -> int:
    """Return the size in bytes of the states of `layers` delta nets, with the maximum number of checkpoints."""
    state, row = delta.v_heads * delta.v_dim * delta.k_dim, delta.mixed
    history = (delta.kernel - 1) * row
    floats = state + history + MAX_ROWS * (row + 2 * delta.v_heads) + delta.kernel * row
    return layers * (floats + MAX_CHECKPOINTS * (state + history)) * np.dtype(np.float32).itemsize


class CpuTarget:
    """See `Target`. `taps` are the 0-based layers whose outputs are features; `kv` is one of `CPU_KV_FORMATS`."""

    max_width = MAX_ROWS

    def __init__(
        self,
        packed: PackedModel[DecoderConfig],
        pool: ThreadPool,
        context: int = 0,
        taps: Sequence[int] = (),
        kv: str = "f16",
    ) -> None:
        c = packed.config
        if problem := why_unsupported(c):
            raise ModelError(f"the CPU engine does not run {problem}; use `--backend llama.cpp`")
        check_context(context, c.context_length)
        self.context = context or c.context_length
        self.packed, self.pool, layers = packed, pool, packed.layers()
        self.vocab_size, self.length = c.vocab_size, 0
        self.cache = KVCache(c.num_hidden_layers - c.recurrent_layers, c, self.context, kv)
        self.states = DeltaStates(c, layers) if c.delta else None
        self.is_recurrent = self.states is not None
        self.rope = rope_tables(c, self.cache.capacity)
        self._taps = np.array(taps, np.int32)
        windows = c.windows or [0] * c.num_hidden_layers
        nets = self.states.nets if self.states else ()
        self._layers = bind_layers(layers, self.cache, [True] * c.num_hidden_layers, windows, nets)
        self.model = self._bind()
        self.workspace = allocate_aligned([pool.library.workspace_bytes(self.model, pool.threads)], np.uint8)
        self.model.workspace = address(self.workspace)
        pool.keep_alive(self.model, self._layers)
        self._ids = np.zeros(MAX_ROWS, np.int32)
        self._logits = np.empty((MAX_ROWS, c.vocab_size), np.float32)
        self._logits_address = address(self._logits)
        self._best, self._are_finite = np.zeros(MAX_ROWS, np.int32), np.zeros(MAX_ROWS, np.int32)
        self._best_address, self._are_finite_address = address(self._best), address(self._are_finite)
        self._features = np.empty((MAX_ROWS, len(taps) * c.hidden_size), np.float32)
        self._pass = cpu_library.PassStruct(address(self._ids), 0, 0, address(self._features) if taps else None)

    @property
    def scratch_bytes(self) -> int:
        """Size in bytes of all memory except weights, KV cache and recurrent states."""
        arrays = (*self.rope, self._taps, self.workspace, self._ids, self._logits, self._features)
        return sum(array.nbytes for array in arrays)

    def _bind(self) -> cpu_library.ModelStruct:
        c = self.packed.config
        model = bind_shape(c)
        model.capacity = self.cache.capacity
        model.cosines, model.sines = map(address, self.rope)
        model.embedding, model.head = bind_matrix(self.packed.parts["embedding"]), bind_matrix(self.packed.head)
        model.norm, model.layers = address(self.packed.parts["norm"]), self._layers
        model.taps, model.tap_count = address(self._taps), len(self._taps)
        if self.states:
            model.progress = ctypes.pointer(self.states.progress)
        return model

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        """See `Target`."""
        self._forward(ids, logits=False)
        self.length += len(ids)
        if self.states:
            self.states.checkpoint(prompt_ended=False)
        return self._features[: len(ids)].copy() if len(self._taps) else None

    def verify(self, anchor: int, draft: Draft = EMPTY_DRAFT) -> Verification:
        """See `Target`."""
        rows = len(draft) + 1
        self._forward((anchor, *draft.tokens), logits=True)
        return Verification(self._logits[:rows], self._features[:rows] if len(self._taps) else None)

    def verify_greedy(self, anchor: int, draft: Draft) -> tuple[Sequence[int], TargetFeatures | None]:
        """See `GreedyTarget`."""
        rows = len(draft) + 1
        self._forward((anchor, *draft.tokens), logits=False, best=True)
        if 0 in self._are_finite[:rows].tolist():  # faster than numpy's `all` on a few rows
            raise LocaldflashError(NOT_NUMBERS)
        return self._best[:rows].tolist(), self._features[:rows] if len(self._taps) else None

    def end_prompt(self) -> None:
        """See `Target`; add a checkpoint if the states include the whole prompt."""
        if self.states and self.states.progress.base == self.length:
            self.states.checkpoint(prompt_ended=True)

    def keep(self, rows: int) -> None:
        """See `Target`."""
        self.length += rows

    def crop(self, length: int) -> None:
        """See `Target`."""
        self.length = self.states.roll_back(length) if self.states else length

    def assume_length(self, length: int) -> bool:
        """See `Target`."""
        if self.states:
            self.states.assume(length)
        self.length = length
        return True

    def save(self) -> bytes:
        """See `Target`."""
        if not self.states:
            return self.cache.save(self.length)
        self._forward((), logits=False)  # advances the states to the committed length
        return self.states.save() + self.cache.save(self.length)

    def load(self, state: bytes, length: int) -> None:
        """See `Target`."""
        if self.states:
            self.states.load(state[: self.states.saved_bytes], length)
            state = state[self.states.saved_bytes :]
        self.cache.load(state, length)
        self.length = length

    def close(self) -> None:
        """End the pool's threads, which the drafter uses as well."""
        self.pool.close()

    def _forward(self, ids: Sequence[int], *, logits: bool, best: bool = False) -> None:
        rows = len(ids)
        if rows > MAX_ROWS or self.length + rows > self.cache.capacity:
            raise LocaldflashError(
                f"cannot add {rows} tokens after {self.length}: a batch holds {MAX_ROWS},"
                f" the cache {self.cache.capacity}"
            )
        if rows and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise UsageError(f"a token id is outside the model's vocabulary of {self.vocab_size}")
        self._ids[:rows] = ids
        job = self._pass
        job.rows, job.start = rows, self.length
        job.logits = self._logits_address if logits else None
        job.best, job.finite = (self._best_address, self._are_finite_address) if best else (None, None)
        job.keep_all = not (logits or best)  # rows of a prompt are certain to be committed: advance the states at once
        self.pool.forward(ctypes.byref(self.model), ctypes.byref(job), self.pool.handle)
