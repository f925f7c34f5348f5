"""Thread that loads and runs one pair (target model and drafter)."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Any, Self

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.base.files.paths import cache_folder
from localdflash.engine.compute_lock import ComputeLock
from localdflash.engine.generate import Request
from localdflash.engine.pair import Step
from localdflash.engine.prefix import PrefixCache
from localdflash.engine.prefix_disk import DiskCache
from localdflash.engine.scheduler import Scheduler
from localdflash.loading import proof
from localdflash.loading.child import ChildCancellation
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import CHECKING_GPU
from localdflash.models.load_options import Options
from localdflash.models.memory.free import system_budget
from localdflash.models.memory.parts import PROGRAM, total
from localdflash.server.answer_stream import AnswerStream, TextDelta
from localdflash.text.stream import AnswerText

POLL_SECONDS = 0.02  # interval of checks for finished requests
IDLE_POLLS = 3  # consecutive checks without a request; a prepared request or a next choice follows within milliseconds
MIN_CACHE_BYTES, MAX_CACHE_BYTES = 256_000_000, 8_192_000_000


class PairWorker:
    """Thread that loads one pair at `start`, and runs its requests until `retire` or `close`.

    `cache_bytes` (None: a share of the free memory) and `disk_bytes` limit the prefix cache; `queue` limits the waiting
    requests. Of the workers that share a `compute_lock`, only one computes at a time.
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
        self.device_lost: threading.Event = threading.Event()  # set if the GPU is lost: only a new process can recover
        self.loaded_at = 0.0  # seconds since 1970
        self.doing = ""  # slow stage of the load in progress, for status reports
        self.passed_check = False  # whether `_checking_gpu` found CUDA sound: loading the pair again uses it
        self._cache_bytes, self._disk_bytes, self._queue, self._observe = cache_bytes, disk_bytes, queue, observe
        self._compute_lock = compute_lock or ComputeLock()
        self.last_used = self.last_completion = time.monotonic()  # time at which the last answer, or completion, ended
        self.is_evicting = False  # whether requests were cancelled to free memory for another pair
        self._loading: Future[LoadedPair] = Future()
        self._eviction: Future[None] = Future()  # while it is pending, `ready` waits, so that no request begins
        self._eviction.set_result(None)
        self._thread: threading.Thread | None = None
        self._unloading = threading.Event()
        self._closed = False
        self._users = 0  # open contexts of `keep_loaded`

    def new_worker(self, options: Options) -> Self:
        """Return a worker for another pair, with this worker's limits and compute lock."""
        return type(self)(options, self._cache_bytes, self._queue, self._observe, self._disk_bytes, self._compute_lock)

    @property
    def display_name(self) -> str:
        """Return the pair's name for messages: its id, or the last part of a path or hub name."""
        return self.options.pair.rstrip("/").rpartition("/")[2]

    @property
    def loaded(self) -> LoadedPair | None:
        """Return the pair while it is loaded, else None."""
        if not self._thread or not self._thread.is_alive():
            return None
        return self._loading.result() if self._loading.done() and not self._loading.exception() else None

    @property
    def is_busy(self) -> bool:
        """Return whether any request, chat or completion, is running or waiting."""
        return self._users > 0 or (self.scheduler is not None and self.scheduler.is_busy)

    @property
    def is_answering(self) -> bool:
        """Return whether a chat answer is running or waiting."""
        return self.scheduler is not None and self.scheduler.is_answering

    @property
    def size(self) -> int:
        """Return the bytes of CPU and GPU memory that the loaded pair occupies; 0 if no pair is loaded."""
        return total(self.loaded.memory() | {PROGRAM: 0}) if self.loaded else 0

    @property
    def prefix_bytes(self) -> int:
        """Return the size of the prefix cache in memory."""
        return self.scheduler.prefixes.size if self.scheduler and self.scheduler.prefixes else 0

    @property
    def error(self) -> BaseException | None:
        """Return the error of a failed load, else None."""
        return self._loading.exception() if self._loading.done() else None

    def start(self) -> None:
        """Start loading the pair on the engine thread; `ready` waits for the pair."""
        self._loading = _pending()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loading = self._loading
        with ExitStack() as stack:
            try:
                loaded = stack.enter_context(LoadedPair(replace(self.options, compiling=self._report_compiling)))
                prefixes = PrefixCache(self._choose_cache_bytes(), self._open_disk_cache(loaded))
            except BaseException as error:
                loading.set_exception(error)
                return
            self.scheduler = Scheduler(loaded.pair, prefixes, self._queue, self._compute_lock)
            if self._closed:
                self.scheduler.close()
            self.loaded_at = time.time()
            stack.enter_context(self._checking_gpu(loaded))
            loading.set_result(loaded)
            try:
                self.scheduler.run()
            except BaseException as error:
                self.device_lost.set()
                if isinstance(error, LocaldflashError):
                    return  # every request has received this error
                raise
            _save_prefixes(prefixes, loaded)

    @contextmanager
    def _checking_gpu(self, loaded: LoadedPair) -> Iterator[None]:
        """If the pair must be checked before `auto` may use CUDA, check it in a thread while the context is open."""
        is_first = proof.is_first_check(self.options)
        subject = None if is_first else proof.find_unchecked_subject(loaded.files, self.options)
        if not (subject or is_first):
            yield
            return
        loaded.gpu_check, identified = CHECKING_GPU, threading.Event()
        loaded.notice = f"{loaded.backend} answers until the CUDA engine is checked on this GPU (minutes, once)"

        def check() -> None:
            try:
                checked = subject or proof.Subject.of(loaded.files, self.options)
            except LocaldflashError as error:  # the CUDA engine cannot run this pair here
                loaded.gpu_check, loaded.notice = "", f"no CUDA engine: {error}"
                return
            identified.set()
            if self._unloading.is_set():
                return
            try:
                proof.check(checked, loaded.files, self.options, self._unloading)
            except ChildCancellation:
                return
            except LocaldflashError as error:
                loaded.gpu_check = str(error)
                return
            loaded.gpu_check = checked.why_not() or proof.SOUND
            self.passed_check = loaded.gpu_check == proof.SOUND

        thread = threading.Thread(target=check, name="gpu check", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._unloading.set()
            if identified.is_set():  # else it is still importing torch, and ends after that
                thread.join()

    def _report_compiling(self, done: int, total: int) -> None:
        self.doing = f"compiling {done} of {total}" if done < total else ""

    def _choose_cache_bytes(self) -> int:
        """Return the size limit of the prefix cache in memory, from the settings or the free memory."""
        if self._cache_bytes is not None:
            return self._cache_bytes
        return min(max(system_budget().free // 8, MIN_CACHE_BYTES), MAX_CACHE_BYTES)

    def _open_disk_cache(self, loaded: LoadedPair) -> DiskCache | None:
        if not self._disk_bytes:
            return None
        return DiskCache(cache_folder() / "prefixes", loaded.identity(), self._disk_bytes)

    async def ready(self) -> LoadedPair:
        """Wait for the pair and return it; raise the error of a failed load."""
        while not (self._eviction.done() and self._loading.done()):  # either may begin again during the wait
            await asyncio.wrap_future(self._eviction)
            await asyncio.wrap_future(self._loading)
        return self._loading.result()

    @contextmanager
    def keep_loaded(self) -> Iterator[None]:
        """Count as busy during the context, so that `wait_idle` waits; for requests that are about to follow."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    async def wait_idle(self, *, cancel: bool = False) -> None:
        """Wait until no request is left; `cancel` them first if set. `ready` blocks until the eviction is decided."""
        self._eviction, self.is_evicting = _pending(), cancel
        try:
            idle_polls = 0
            while idle_polls < IDLE_POLLS:
                if cancel and self.scheduler:
                    self.scheduler.cancel_all()
                idle_polls = 0 if self.is_busy else idle_polls + 1
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            self.cancel_eviction()
            raise

    def cancel_eviction(self) -> None:
        """Keep the pair after all, and let waiting calls of `ready` continue."""
        self.is_evicting = False
        if not self._eviction.done():
            self._eviction.set_result(None)

    async def retire(self) -> None:
        """Finish the current requests, then unload the pair; later requests raise EngineDisconnect."""
        self._loading = _pending()
        self._loading.set_exception(EngineDisconnect("the model was unloaded; send the request again"))
        await asyncio.to_thread(self._stop, cancel=False)
        self.scheduler = None  # frees the pair and its cache for another pair
        if not self._eviction.done():
            self._eviction.set_result(None)

    def cancel(self) -> None:
        """Cancel every request, and refuse new requests."""
        self._closed = True
        if self.scheduler:
            self.scheduler.close()

    def close(self) -> None:
        """Cancel every request and unload the pair."""
        self.cancel()
        self._stop(cancel=True)

    def _stop(self, *, cancel: bool) -> None:
        if self.scheduler:
            (self.scheduler.close if cancel else self.scheduler.drain)()
        if self._thread:
            self._thread.join()

    async def stream(
        self,
        request: Request,
        text: AnswerText,
        *,
        urgent: bool = False,
        document: str | None = None,
        seconds: float = 0.0,
        progress: bool = False,
    ) -> AsyncGenerator[TextDelta]:
        """Run a request and yield the deltas of its text, and with `progress` those of its prefill; see `AnswerStream`.

        Raise the error of a failed request.
        """
        loaded, scheduler = self.loaded, self.scheduler
        if not (loaded and scheduler):
            raise EngineDisconnect("the model was unloaded; send the request again")
        answer = AnswerStream(request, text, loaded.vocab_size, scheduler, self._observe, urgent, seconds)
        request.on_prefill = answer.report_prefill if progress else None
        try:
            async with aclosing(answer.run(document)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.last_used = time.monotonic()
            if urgent:
                self.last_completion = self.last_used


def _save_prefixes(prefixes: PrefixCache, loaded: LoadedPair) -> None:
    try:
        prefixes.write_to_disk(loaded.pair)
    except (OSError, LocaldflashError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        print(f"localdflash: cannot write the prefix cache: {reason}", file=sys.stderr)  # noqa: T201


def _pending() -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # so that a cancelled waiter does not cancel the future
    return future
