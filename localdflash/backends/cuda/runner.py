"""Runner of the sequences of `Stepper`: as captured CUDA graphs on a GPU, directly on a CPU.

A graph is captured for each number of attention chunks. A step's record is copied to pinned memory, with an event to
wait for. `prepare` compiles and captures all sequences. A CUDA error that breaks the process becomes `DeviceError`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import AsyncCompileMode

from localdflash.backends.cuda.device import on
from localdflash.backends.cuda.leaving import Leaving, Outbox, bring_back, new_stage
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import Stepper, Way
from localdflash.base.errors import DeviceError, LocaldflashError
from localdflash.kernels.cuda.attention import BUCKETS, chunks_of, slots_of
from localdflash.kernels.cuda.launch import KernelLaunch, withheld
from localdflash.kernels.cuda.split_k import MOST_TILES
from localdflash.models.load_options import Compiling

COMPILERS = 8  # threads; each kernel takes 1 to 10 s of one core
FOLDER = "TRITON_CACHE_DIR"  # the variable by which Triton is told


def compile_all(launches: Iterable[KernelLaunch], compiling: Compiling | None = None) -> None:
    """Compile each variant among the launches once, several at a time; `compiling` is told how many are done."""
    keep_compiled()
    distinct = {launch.variant: launch for launch in launches}
    report = compiling or (lambda _done, _total: None)
    report(0, len(distinct))
    with ThreadPoolExecutor(COMPILERS) as pool, AsyncCompileMode(pool) as compiler:  # LLVM and ptxas release the GIL
        for launch in distinct.values():
            launch.compile()
        for done, _ in enumerate(as_completed(compiler.raw_futures), 1):
            report(done, len(distinct))


def keep_compiled() -> None:
    """Let this process's Triton keep what it compiles in our folder, unless the user has named another."""
    if FOLDER in os.environ:
        return
    with suppress(LocaldflashError, ImportError):  # without a folder of ours Triton has one of its own
        from localdflash.base.files.paths import cache_folder, create_private  # needs more than the GPU's tests do

        os.environ[FOLDER] = str(create_private(cache_folder() / "triton"))


Key = tuple[str, int]  # a sequence's name, and how many chunks of attention it covers


class Runner:
    """One stream, one memory pool, one graph for every sequence and size that was asked for."""

    def __init__(self, stepper: Stepper, graphs: bool = True) -> None:
        self.stepper = stepper
        self._slots = stepper.cache.k.shape[1]
        self._on_device = stepper.device.type == "cuda"
        self._captures = self._on_device and graphs  # else every launch is Python's
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._on_device else None
        self._records = torch.zeros_like(stepper.records, device="cpu", pin_memory=self._on_device)
        self._logits: Tensor | None = None  # pinned, from the first request that reads them
        self._arriving: Tensor | None = None  # pinned, from the first sequence that comes back
        self._outbox = Outbox(stepper.device)
        self._leaving: Leaving | None = None

    def prepare(self, ways: Sequence[Way], compiling: Compiling | None = None) -> None:
        """Compile every kernel that these ways may launch, at any length, and capture every sequence."""
        if not self._on_device:
            return
        with self.on_gpu():
            compile_all(self.launches(ways), compiling)
            for key, sequence in self._sequences(ways) if self._captures else ():
                self._graphs[key] = self._capture(sequence)
        if self.stepper.reader:  # the longest, so that torch has the memory
            self.read(self._slots - self.stepper.reader.block)

    def launches(self, ways: Sequence[Way]) -> list[KernelLaunch]:
        """Everything that these ways may launch, at any length."""
        with withheld() as launches:
            for _, sequence in self._sequences(ways):
                sequence()
            if self.stepper.reader:
                self.stepper.reader.unpack_all()
        return launches

    def _sequences(self, ways: Sequence[Way]) -> Iterator[tuple[Key, Callable[[], None]]]:
        most = chunks_of(self._slots)
        for splits in sorted({min(bucket, most) for bucket in BUCKETS}):
            for tiles in range(1, MOST_TILES + 1):
                yield self._extending(tiles, splits)
            for way in ways:
                yield self._stepping(way, True, splits)
                yield self._stepping(way, False, splits)
        if self.stepper.block:
            yield self._catching_up()

    def step(self, way: Way, greedy: bool, length: int) -> torch.cuda.Event | None:
        """Start a step at a context of at most `length` tokens; return its event, None on a CPU, where it is over."""
        self.make_room(length + ROWS)
        with self.on_gpu():
            self._run(*self._stepping(way, greedy, chunks(length, self._slots)))
            if not self._on_device:
                return None
            event = torch.cuda.Event()
            event.record()
            return event

    def _stepping(self, way: Way, greedy: bool, splits: int) -> tuple[Key, Callable[[], None]]:
        def recorded() -> None:
            self.stepper.step(way, greedy, splits)
            self._records.copy_(self.stepper.records, non_blocking=True)

        return (f"{way} {'greedy' if greedy else 'sampled'}", splits), recorded

    def record(self, arrival: torch.cuda.Event | None, number: int) -> list[int]:
        """Wait for a step, the `number`-th of the stepper; return its record."""
        with self.on_gpu():
            if arrival:
                arrival.synchronize()
        fields: list[int] = self._records[number % len(self._records)].tolist()
        return fields

    def draft_and_logits(self, drafted: int) -> tuple[list[int], NDArray[np.float32]]:
        """Return the drafted tokens and logits [drafted + 1, V] of the newest step, which must be over."""
        there, rows = self.stepper.sampling.logits, drafted + 1
        with self.on_gpu():
            if self._logits is None:
                self._logits = torch.empty(there.shape, pin_memory=self._on_device)
            here = self._logits[:rows]
            here.copy_(there[:rows])
            return self.stepper.draft[1:rows].tolist(), here.numpy()

    def extend(self, tiles: int, length: int) -> None:
        """Compute one or two tiles of 16 tokens after a context of `length`."""
        last = length + ROWS * (tiles - 1)  # where the last tile starts
        self.make_room(last + ROWS)
        with self.on_gpu():
            self._run(*self._extending(tiles, chunks(last, self._slots)))

    def _extending(self, tiles: int, splits: int) -> tuple[Key, Callable[[], None]]:
        return (f"extend {tiles}", splits), lambda: self.stepper.extend(tiles, splits)

    def read(self, length: int) -> None:
        """Read a block of the prompt's tokens after a context of `length`; see `PromptReader`."""
        reader = self.stepper.reader
        assert reader
        self.make_room(length + reader.block)
        with self.on_gpu():
            reader.read(self.stepper.tokens[length : length + reader.block], length)

    def catch_up(self, length: int) -> None:
        """Give the drafter 16 more tokens of a context of `length`."""
        self.make_room(length + ROWS)
        with self.on_gpu():
            self._run(*self._catching_up())

    def _catching_up(self) -> tuple[Key, Callable[[], None]]:
        return ("catch up", 0), self.stepper.catch_up

    def put_aside(self, groups: Sequence[Sequence[Tensor]], slots: int) -> Leaving:
        """Let the first `slots` rows of each group's tensors leave the device, while it goes on with something else."""
        self.synchronize()
        self.make_room(len(self.stepper.tokens))
        self._leaving = self._outbox.send(groups, slots)
        return self._leaving

    def bring_back(self, groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int) -> None:
        """Fill the first `slots` rows of each group's tensors with what `put_aside` saved of them."""
        self.make_room(slots)
        with self.on_gpu():
            if self._arriving is None:
                self._arriving = new_stage(self._on_device)
            bring_back(groups, saved, slots, self._arriving)

    def make_room(self, slots: int) -> None:
        """Wait until nothing that is leaving the device is in the first `slots` slots of the caches."""
        if self._leaving:
            with self.on_gpu():
                self._leaving.wait_for(slots)

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        if self._on_device:
            with self.on_gpu():
                torch.cuda.synchronize(self.stepper.device)

    @contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Make the pair's GPU the thread's own; errors that stick to the process become DeviceError."""
        with on(self.stepper.device), device_errors():
            yield

    def close(self) -> None:
        """Wait until the device is at rest, and nothing is leaving it any more."""
        self.synchronize()
        self._outbox.close()

    def _run(self, key: Key, sequence: Callable[[], None]) -> None:
        if not self._captures:
            sequence()
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(sequence)
        self._graphs[key].replay()

    def _capture(self, sequence: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The sequence as a graph. The run before it is undone: it only writes past the context, and the state."""
        state = self.stepper.state.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sequence()  # brings what is compiled onto the device
            self.stepper.state.copy_(state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # On a stream of this GPU: torch's own belongs to the one that captured first.
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            sequence()
        return graph


def chunks(length: int, slots: int) -> int:
    """Return how many attention chunks a step from `length` tokens is captured with, in a cache of `slots`."""
    return min(next(splits for splits in BUCKETS if length + ROWS <= slots_of(splits)), chunks_of(slots))


@contextmanager
def device_errors() -> Iterator[None]:
    """CUDA errors of this thread's GPU that stick to the process, so that every later call has them, as DeviceError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "CUDA" not in str(error) or not _is_lost():
            raise
        first = str(error).splitlines()[0]
        raise DeviceError(f"the GPU failed and this process cannot use it any more ({first}); start again") from error


def _is_lost() -> bool:
    """Return whether this thread's GPU answers no call of this process any more."""
    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):
        return True
    return False
