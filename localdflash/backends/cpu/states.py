"""What layers of gated delta net keep of a sequence: states, and what the rows of the last pass were made of.

A state belongs to one length of the sequence. It can go on by any number of the last pass's rows, but never back: for
that there are checkpoints, copies at a few earlier lengths.
"""

from collections.abc import Sequence

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import PackedLayer, bind_matrix
from localdflash.backends.cpu.cpu_library import MAX_ROWS, address, allocate_aligned
from localdflash.backends.cpu.packing import Floats
from localdflash.engine.checkpoints import MAX_CHECKPOINTS, Checkpoints
from localdflash.models.shapes.decoder_config import DecoderConfig, DeltaShape


class DeltaStates:
    """The states of a decoder's delta nets, bound to their layers."""

    def __init__(self, config: DecoderConfig, layers: Sequence[PackedLayer]) -> None:
        assert config.delta is not None
        d, nets = config.delta, [layer for layer in layers if layer.mixed is not None]
        self.progress = cpu_library.ProgressStruct(0, 0)
        self._before = d.kernel - 1
        self._state: Floats = allocate_aligned((len(nets), d.v_heads, d.v_dim // 16, d.k_dim, 16), np.float32)
        self._history: Floats = allocate_aligned((len(nets), self._before + MAX_ROWS, d.mixed), np.float32)
        self._gates: Floats = allocate_aligned((2, len(nets), MAX_ROWS, d.v_heads), np.float32)
        self._conv = [np.ascontiguousarray(net.conv.T) for net in nets if net.conv is not None]
        self.nets = [self._bind(i, net) for i, net in enumerate(nets)]
        self._checkpoints = Checkpoints[tuple[Floats, Floats]]()

    def _bind(self, index: int, net: PackedLayer) -> cpu_library.DeltaNetStruct:
        bound = cpu_library.DeltaNetStruct()
        bound.mixed, bound.gate = bind_matrix(net.mixed), bind_matrix(net.mixed_gate)
        bound.alpha, bound.beta = bind_matrix(net.alpha), bind_matrix(net.beta)
        bound.conv, bound.norm = address(self._conv[index]), address(net.delta_norm)
        bound.rate, bound.shift = address(net.rate), address(net.shift)
        bound.state, bound.history = address(self._state[index]), address(self._history[index])
        bound.decays, bound.betas = address(self._gates[0, index]), address(self._gates[1, index])
        return bound

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        held = (self._state, self._history, self._gates, *self._conv)
        copies = sum(array.nbytes for state in self._checkpoints.states for array in state)
        return sum(array.nbytes for array in held) + copies

    def can_reach(self, length: int) -> bool:
        """Return whether the states can go on to this length, or begin anew."""
        return length == 0 or 0 <= length - self.progress.base <= self.progress.rows

    def checkpoint(self, prompt_ended: bool) -> None:
        """Keep a copy of the states as they are, where a prompt ended or far enough from the last one."""
        length = self.progress.base
        if self._checkpoints.should_add(length, prompt_ended):
            self._checkpoints.add(length, (self._state.copy(), self._history[:, : self._before].copy()))

    def roll_back(self, length: int) -> int:
        """Drop what is after `length`; the greatest length up to it from which the states can go on."""
        self._checkpoints.drop_after(length)
        if self.can_reach(length):
            return length
        if (newest := self._checkpoints.newest()) is None:
            return 0
        at, state = newest
        self._put(*state, at)
        return at

    def assume(self, length: int) -> None:
        """Count the states as those of so many tokens."""
        self.progress.base, self.progress.rows = length, 0

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of what `save` returns."""
        return self._state.nbytes + self._history[:, : self._before].nbytes

    def save(self) -> bytes:
        """Return the states, which are settled."""
        return self._state.tobytes() + self._history[:, : self._before].tobytes()

    def load(self, saved: bytes, length: int) -> None:
        """Restore saved ones; ValueError if they are not of this shape."""
        numbers, size = np.frombuffer(saved, np.float32), self._state.size
        before = self._history[:, : self._before].shape
        self._checkpoints = Checkpoints()
        self._put(numbers[:size].reshape(self._state.shape), numbers[size:].reshape(before), length)

    def _put(self, state: Floats, before: Floats, length: int) -> None:
        self._state[...], self._history[:, : self._before] = state, before
        self.assume(length)


def state_bytes(delta: DeltaShape, layers: int) -> int:
    """Return the bytes of the states of so many layers, with their checkpoints."""
    state, row = delta.v_heads * delta.v_dim * delta.k_dim, delta.mixed
    before = (delta.kernel - 1) * row
    kept = state + before + MAX_ROWS * (row + 2 * delta.v_heads) + delta.kernel * row
    return layers * (kept + MAX_CHECKPOINTS * (state + before)) * np.dtype(np.float32).itemsize
