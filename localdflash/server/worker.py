"""The engine of the daemon: a loaded pair on a thread of its own, and answers as asynchronous streams.

What is `async` belongs to an event loop, all else may be called from any thread. A stream that is closed, or whose task
is cancelled, stops its request within one step.
"""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any, Self

import psutil

from localdflash.base.errors import EngineGone, LocaldflashError
from localdflash.base.files.paths import cache_folder
from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.prefix_disk import DiskCache
from localdflash.engine.scheduler import Scheduler
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import PROGRAM, total
from localdflash.server.answering import Answering, TextDelta
from localdflash.text.stream import AnswerText, Detokenizer, Ending, TextDecoder
from localdflash.text.tokenizer import Tokenizer

POLL_SECONDS = 0.02  # seconds between two looks at whether requests are done
MIN_CACHE_BYTES, MAX_CACHE_BYTES = 256_000_000, 8_192_000_000  # bytes


class PairWorker:
    """Runs one pair on its thread, from `start` until it is retired or closed.

    `cache_bytes` is the budget of the prefix cache in memory (None: a share of what is free once the pair is loaded),
    `disk_bytes` of what it leaves to the next process, `queue` how many requests may wait. Engines that share
    `compute_lock` compute one at a time.
    """

    def __init__(
        self,
        options: Options,
        cache_bytes: int | None,
        queue: int,
        observe: Callable[[Step], None],
        disk_bytes: int = 0,
        compute_lock: ComputeLock | None = None,
    ) -> None:
        self.options = options
        self.scheduler: Scheduler | None = None
        self.failed: threading.Event = threading.Event()  # the device is lost: only a new process can go on
        self.loaded_at = 0.0
        self.doing = ""  # of a load: what takes long
        self._cache_bytes, self._disk_bytes, self._queue, self._observe = cache_bytes, disk_bytes, queue, observe
        self._compute_lock = compute_lock or ComputeLock()
        self.used = self.completed = time.monotonic()  # when the last answer ended, and the last completion
        self.taken = False  # whether its answers end for the sake of another pair
        self._loading: Future[LoadedPair] = Future()
        self._gate: Future[None] = Future()  # done: requests may begin
        self._gate.set_result(None)
        self._thread: threading.Thread | None = None
        self._closed = False

    def beside(self, options: Options) -> Self:
        """Another engine, for another pair, that takes turns with this one."""
        return type(self)(options, self._cache_bytes, self._queue, self._observe, self._disk_bytes, self._compute_lock)

    @property
    def called(self) -> str:
        """Return what a line calls the pair: its id; of a path, or of a name on the hub, the file."""
        return self.options.pair.rstrip("/").rpartition("/")[2]

    @property
    def loaded(self) -> LoadedPair | None:
        """Return the pair, once it is loaded and until it is freed."""
        if not self._thread or not self._thread.is_alive():
            return None
        return self._loading.result() if self._loading.done() and not self._loading.exception() else None

    @property
    def busy(self) -> bool:
        """Return whether there are requests."""
        return self.scheduler is not None and self.scheduler.is_busy

    @property
    def answering(self) -> bool:
        """Return whether one of them is for an answer."""
        return self.scheduler is not None and self.scheduler.is_answering

    @property
    def size(self) -> int:
        """Return the bytes that the pair takes, on a GPU too, without the program; 0 where none is loaded."""
        return total(self.loaded.memory() | {PROGRAM: 0}) if self.loaded else 0

    @property
    def error(self) -> BaseException | None:
        """Why there is no pair, if loading failed."""
        return self._loading.exception() if self._loading.done() else None

    def start(self) -> None:
        """Load on the engine thread; `ready` waits for it."""
        self._loading = _pending()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loading = self._loading
        with ExitStack() as stack:
            try:
                loaded = stack.enter_context(LoadedPair(replace(self.options, compiling=self._compiling)))
                prefixes = PrefixCache(self._budget(), self._disk(loaded))
            except BaseException as error:
                loading.set_exception(error)
                return
            self.scheduler = Scheduler(loaded.pair, prefixes, self._queue, self._compute_lock)
            if self._closed:
                self.scheduler.close()
            self.loaded_at = time.time()
            loading.set_result(loaded)
            try:
                self.scheduler.run()
            except BaseException as error:
                self.failed.set()
                if isinstance(error, LocaldflashError):
                    return  # told to every request already
                raise
            _write_out(prefixes, loaded)

    def _compiling(self, done: int, total: int) -> None:
        self.doing = f"compiling {done} of {total}" if done < total else ""

    def _budget(self) -> int:
        """Return the bytes of the prefix cache: a chat that gives way resumes from there, and a long one may take a
        gigabyte.
        """
        if self._cache_bytes is not None:
            return self._cache_bytes
        return min(max(psutil.virtual_memory().available // 8, MIN_CACHE_BYTES), MAX_CACHE_BYTES)

    def _disk(self, loaded: LoadedPair) -> DiskCache | None:
        if not self._disk_bytes:
            return None
        return DiskCache(cache_folder() / "prefixes", loaded.identity(), self._disk_bytes)

    async def ready(self) -> LoadedPair:
        """Return the pair, after waiting for it; the error of a load that failed."""
        await self.settled()
        return await asyncio.wrap_future(self._loading)

    async def settled(self) -> None:
        """Wait while it is decided whether the pair has to go."""
        await asyncio.wrap_future(self._gate)

    async def emptied(self, *, end: bool = False) -> None:
        """Wait for the requests that are there, or end them; new ones wait for `stay` or `retire`.

        If this is cancelled the pair stays.
        """
        self._gate, self.taken = _pending(), end
        try:
            if end and self.scheduler:
                self.scheduler.cancel_all()
            while self.busy:
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            self.stay()
            raise

    def stay(self) -> None:
        """Let new requests begin, as the pair does not have to go."""
        self.taken = False
        if not self._gate.done():
            self._gate.set_result(None)

    async def retire(self) -> None:
        """Free the pair after the requests that are there; whoever comes later is told to ask again."""
        self._loading = _pending()
        self._loading.set_exception(EngineGone("this model was unloaded: ask again"))
        await asyncio.to_thread(self._stop, False)
        self.scheduler = None  # it holds the pair and its cache, whose memory another pair may need
        if not self._gate.done():
            self._gate.set_result(None)

    def cancel(self) -> None:
        """Cancel every request and take no more."""
        self._closed = True
        if self.scheduler:
            self.scheduler.close()

    def close(self) -> None:
        """Cancel every request and free the pair."""
        self.cancel()
        self._stop(True)

    def _stop(self, at_once: bool) -> None:
        if self.scheduler:
            (self.scheduler.close if at_once else self.scheduler.drain)()
        if self._thread:
            self._thread.join()

    async def stream(
        self,
        request: Request,
        stops: Sequence[str] = (),
        *,
        urgent: bool = False,
        document: str | None = None,
        seconds: float = 0.0,
        ending: Ending | None = None,
        spelling: Callable[[Tokenizer], TextDecoder] = Detokenizer,
    ) -> AsyncGenerator[TextDelta]:
        """Run a request, delta by delta; `request` says afterwards how it went. Raises what ended it early.

        `seconds` bounds the time after the first step, 0 does not: the answer then ends with "length".
        """
        loaded, scheduler = self.loaded, self.scheduler
        if not (loaded and scheduler):
            raise EngineGone("this model was unloaded: ask again")
        text = AnswerText(spelling(loaded.tokenizer), request.ends, stops, ending)
        answer = Answering(request, text, loaded.vocab_size, scheduler, self._observe, urgent, seconds)
        try:
            async with aclosing(answer.run(document)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.used = time.monotonic()
            if urgent:
                self.completed = self.used


def _write_out(prefixes: PrefixCache, loaded: LoadedPair) -> None:
    try:
        prefixes.write_to_disk(loaded.pair)
    except (OSError, LocaldflashError, MemoryError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        print(f"localdflash: the prefix cache was not written: {told}", file=sys.stderr)  # noqa: T201


def _pending() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
    return future
