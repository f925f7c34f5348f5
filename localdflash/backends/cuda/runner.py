"""Runs the launch sequences of `Stepper`: as captured CUDA graphs on a GPU, directly on a CPU.

A sequence has a graph per number of attention chunks. A step's record (its tokens and counts) is copied to pinned
memory, with an event to wait for. `prepare` compiles and captures all sequences.
"""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import AsyncCompileMode

from localdflash.backends.cuda.device import device_context
from localdflash.backends.cuda.offload import OffloadedSequence, Offloader, new_staging, restore
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import StepMode, Stepper
from localdflash.base.errors import DeviceError, LocaldflashError
from localdflash.kernels.cuda.attention import BUCKETS, chunks_of, slots_of
from localdflash.kernels.cuda.launch import KernelLaunch, collect_launches
from localdflash.kernels.cuda.split_k import MAX_TILES
from localdflash.models.load_options import Compiling

THREADS = 8  # each kernel takes 1 to 10 s of one core
CACHE_VARIABLE = "TRITON_CACHE_DIR"  # environment variable of Triton's cache folder


def compile_all(launches: Iterable[KernelLaunch], compiling: Compiling | None = None) -> None:
    """Compile each variant of kernel among the launches once, in parallel; report done and total to `compiling`."""
    set_triton_cache()
    distinct = {launch.variant: launch for launch in launches}
    report = compiling or (lambda _done, _total: None)
    report(0, len(distinct))
    with ThreadPoolExecutor(THREADS) as pool, AsyncCompileMode(pool) as compiler:  # LLVM and ptxas release the GIL
        for launch in distinct.values():
            launch.compile()
        for done, _ in enumerate(as_completed(compiler.raw_futures), 1):
            report(done, len(distinct))


def set_triton_cache() -> None:
    """Have Triton store compiled kernels in our cache folder, unless the user has set another folder."""
    if CACHE_VARIABLE in os.environ:
        return
    with suppress(LocaldflashError, ImportError):  # then Triton uses its default folder
        from localdflash.base.files.paths import (  # a GPU test machine may lack its packages
            cache_folder,
            create_private,
        )

        os.environ[CACHE_VARIABLE] = str(create_private(cache_folder() / "triton"))


Key = tuple[str, int]  # a sequence's name, and its graph's number of attention chunks (0 if it has only one graph)


class Runner:
    """Graphs of one pair, one per sequence and number of attention chunks, with a common memory pool."""

    def __init__(self, stepper: Stepper, use_graphs: bool = True) -> None:
        self.stepper = stepper
        self._slots = stepper.cache.k.shape[1]
        self._on_device = stepper.device.type == "cuda"
        self._captures = self._on_device and use_graphs  # else Python launches every kernel
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._on_device else None
        self._records = torch.zeros_like(stepper.records, device="cpu", pin_memory=self._on_device)
        self._logits: Tensor | None = None  # pinned; allocated by the first request that reads them
        self._staging: Tensor | None = None  # pinned; allocated by the first `restore`
        self._offloader = Offloader(stepper.device)
        self._offloaded: OffloadedSequence | None = None

    def prepare(self, modes: Sequence[StepMode], compiling: Compiling | None = None) -> None:
        """On a GPU, compile every kernel that these modes may launch, at any length, and capture every sequence."""
        if not self._on_device:
            return
        with self.on_gpu():
            compile_all(self.launches(modes), compiling)
            for key, sequence in self._sequences(modes) if self._captures else ():
                self._graphs[key] = self._capture(sequence)

    def launches(self, modes: Sequence[StepMode]) -> list[KernelLaunch]:
        """Return every kernel launch of these modes and of prefill, at any length."""
        with collect_launches() as launches:
            for _, sequence in self._sequences(modes):
                sequence()
        return launches

    def _sequences(self, modes: Sequence[StepMode]) -> Iterator[tuple[Key, Callable[[], None]]]:
        max_splits = chunks_of(self._slots)
        for splits in sorted({min(bucket, max_splits) for bucket in BUCKETS}):
            for tiles in range(1, MAX_TILES + 1):
                yield self._extend_sequence(tiles, splits)
            for mode in modes:
                yield self._step_sequence(mode, True, splits)
                yield self._step_sequence(mode, False, splits)
        if self.stepper.drafter:
            yield self._catch_up_sequence()
        for size in self.stepper.reader.sizes if self.stepper.reader else ():
            yield self._block_sequence(size)

    def step(self, mode: StepMode, greedy: bool, length: int) -> torch.cuda.Event | None:
        """Start a step at a context of at most `length` tokens; return an event for its end, None if it has ended."""
        self.wait_for_slots(length + ROWS)
        with self.on_gpu():
            self._run(*self._step_sequence(mode, greedy, chunks(length, self._slots)))
            if not self._on_device:
                return None
            event = torch.cuda.Event()
            event.record()
            return event

    def _step_sequence(self, mode: StepMode, greedy: bool, splits: int) -> tuple[Key, Callable[[], None]]:
        def recorded() -> None:
            self.stepper.step(mode, greedy, splits)
            self._records.copy_(self.stepper.records, non_blocking=True)

        return (f"{mode} {'greedy' if greedy else 'sampled'}", splits), recorded

    def read_record(self, arrival: torch.cuda.Event | None, number: int) -> list[int]:
        """Wait for the event `arrival` of step `number`; return the step's record (see `rounds`)."""
        with self.on_gpu():
            if arrival:
                arrival.synchronize()
        fields: list[int] = self._records[number % len(self._records)].tolist()
        return fields

    def draft_and_logits(self, drafted: int) -> tuple[list[int], NDArray[np.float32]]:
        """Return the draft tokens and logits [drafted + 1, V] of the newest step, which must have ended."""
        logits, rows = self.stepper.sampling.logits, drafted + 1
        with self.on_gpu():
            if self._logits is None:
                self._logits = torch.empty(logits.shape, pin_memory=self._on_device)
            on_host = self._logits[:rows]
            on_host.copy_(logits[:rows])
            return self.stepper.draft[1:rows].tolist(), on_host.numpy()

    def extend(self, tiles: int, length: int) -> None:
        """Prefill one or two tiles of 16 tokens after a context of `length`."""
        last = length + ROWS * (tiles - 1)  # where the last tile starts
        self.wait_for_slots(last + ROWS)
        with self.on_gpu():
            self._run(*self._extend_sequence(tiles, chunks(last, self._slots)))

    def _extend_sequence(self, tiles: int, splits: int) -> tuple[Key, Callable[[], None]]:
        return (f"extend {tiles}", splits), lambda: self.stepper.extend(tiles, splits)

    def prefill_block(self, length: int, size: int) -> None:
        """Prefill `size` tokens of the prompt after a context of `length`; see `PromptReader`."""
        self.wait_for_slots(length + size)
        with self.on_gpu():
            self._run(*self._block_sequence(size))

    def _block_sequence(self, size: int) -> tuple[Key, Callable[[], None]]:
        return (f"block of {size}", 0), lambda: self.stepper.prefill_block(size)

    def catch_up(self, length: int) -> None:
        """Give the drafter 16 more tokens of a context of `length`."""
        self.wait_for_slots(length + ROWS)
        with self.on_gpu():
            self._run(*self._catch_up_sequence())

    def _catch_up_sequence(self) -> tuple[Key, Callable[[], None]]:
        return ("catch up", 0), self.stepper.catch_up

    def offload(self, groups: Sequence[Sequence[Tensor]], slots: int) -> OffloadedSequence:
        """Wait for the GPU, then start copying the first `slots` slots of each group's tensors to main memory."""
        self.synchronize()
        self.wait_for_slots(len(self.stepper.tokens))
        self._offloaded = self._offloader.send(groups, slots)
        return self._offloaded

    def restore(self, groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int) -> None:
        """Fill the first `slots` slots of each group's tensors with what `offload` saved."""
        self.wait_for_slots(slots)
        with self.on_gpu():
            if self._staging is None:
                self._staging = new_staging(self._on_device)
            restore(groups, saved, slots, self._staging)

    def wait_for_slots(self, slots: int) -> None:
        """Wait until no copy from the device still reads the first `slots` slots of the caches."""
        if self._offloaded:
            with self.on_gpu():
                self._offloaded.wait_for(slots)

    def synchronize(self) -> None:
        """Wait for everything that was started on the GPU."""
        if self._on_device:
            with self.on_gpu():
                torch.cuda.synchronize(self.stepper.device)

    @contextmanager
    def on_gpu(self) -> Iterator[None]:
        """Make the pair's GPU the thread's current device; errors that break the process become DeviceError."""
        with device_context(self.stepper.device), device_errors():
            yield

    def close(self) -> None:
        """Wait until all steps and copies have ended; end the thread that copies."""
        self.synchronize()
        self._offloader.close()

    def _run(self, key: Key, sequence: Callable[[], None]) -> None:
        if not self._captures:
            sequence()
            return
        if key not in self._graphs:
            self._graphs[key] = self._capture(sequence)
        self._graphs[key].replay()

    def _capture(self, sequence: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Return a sequence as a graph. A run before the capture writes past the context; the state is restored."""
        state = self.stepper.state.clone()
        side = _capture_stream(self.stepper.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sequence()  # loads the compiled kernels onto the device
            self.stepper.state.copy_(state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # On a stream of this GPU: torch's default capture stream belongs to the GPU that captured first.
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            sequence()
        return graph


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for captures, one for all pairs, since torch keeps 32 MB for cuBLAS per stream."""
    return torch.cuda.Stream(device)


def chunks(length: int, slots: int) -> int:
    """Return the number of attention chunks of the graph for a step from `length` tokens, in a cache of `slots`."""
    return min(next(splits for splits in BUCKETS if length + ROWS <= slots_of(splits)), chunks_of(slots))


@contextmanager
def device_errors() -> Iterator[None]:
    """Convert a CUDA error after which every later CUDA call of this process fails to DeviceError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "CUDA" not in str(error) or not _is_lost():
            raise
        _keep_until_exit(error)
        first = str(error).splitlines()[0]
        raise DeviceError(f"the GPU failed, and this process cannot use it any more ({first}); restart it") from error


def _keep_until_exit(error: BaseException) -> None:
    """Keep all that the error's traceback refers to, since freeing memory of a lost GPU aborts the process."""
    if torch.cuda.is_initialized():
        gc.freeze()
        atexit.register(_leave, error)


def _leave(_kept: BaseException) -> None:
    """End the process without freeing anything."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(DeviceError.exit_code)


def _is_lost() -> bool:
    """Return whether every call of this process to this thread's GPU fails."""
    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):
        return True
    return False
