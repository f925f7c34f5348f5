"""Loaded pairs by role: one pair for chat and one for completion, or one pair for both.

A chat can load a further pair without a role. Only requests that name such a pair use it.

If memory is short, `Engines` unloads chat pairs first: idle pairs before busy ones, larger pairs before smaller ones.
A chat can evict the completion pair only after `UNUSED_SECONDS` without a completion. A request for an unloaded pair
loads that pair again; no other pair answers for it. All methods belong to one event loop.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from localdflash.base.errors import ModelBusy, ModelError, OutOfMemory
from localdflash.engine.scheduler import EngineTotals
from localdflash.loading.fim_support import require_fim, supports_fim
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import ROLES, Others, PairRole
from localdflash.server.worker import PairWorker

PURPOSES: Mapping[PairRole, str] = {"chat": "the chat", "completion": "completions"}
COMMANDS: Mapping[PairRole, str] = {"chat": "chat", "completion": "complete"}
UNUSED_SECONDS = 600.0  # after which a pair without a role is unloaded, and a chat pair may evict the completion pair
T = TypeVar("T")


class Engines:
    """Registry of the daemon's engines by role; `later` has the pairs that the first request for a role loads."""

    def __init__(
        self, first: PairWorker, roles: Sequence[PairRole] = ROLES, later: Mapping[PairRole, Options] | None = None
    ) -> None:
        self._first = first  # creates the other workers
        self._workers: dict[PairRole, PairWorker] = dict.fromkeys(roles, first)
        self._beside: list[PairWorker] = []  # pairs without a role, which chats requested by name
        self._later: dict[PairRole, Options] = dict(later or {})
        self._left: set[PairRole] = set()  # roles whose pair was evicted
        self._changing = asyncio.Lock()
        self._awaited: PairWorker | None = None  # worker whose requests the holder of `_changing` waits for

    @property
    def workers(self) -> list[PairWorker]:
        """Return all workers: chat first, then completion, then workers without a role."""
        return list(dict.fromkeys([*(self._workers[role] for role in ROLES if role in self._workers), *self._beside]))

    @property
    def main(self) -> PairRole:
        """Return the role of requests that name no role."""
        return "completion" if "completion" in self._workers and "chat" not in self._workers else "chat"

    @property
    def continuing(self) -> PairRole:
        """Return the role of raw prompts (`/v1/completions`), which editors send too."""
        return "completion" if "completion" in (*self._workers, *self._left) else "chat"

    @property
    def failed(self) -> bool:
        """Return whether a worker lost its device; only a new process can recover."""
        return any(worker.failed.is_set() for worker in self.workers)

    @property
    def error(self) -> BaseException | None:
        """Return a load error if every pair failed to load, else None."""
        errors = [worker.error for worker in self.workers]
        return next(iter(errors), None) if all(errors) else None

    def worker(self, role: PairRole) -> PairWorker | None:
        """Return the worker of a role; its pair may still be loading."""
        return self._workers.get(role)

    def roles(self, worker: PairWorker) -> list[PairRole]:
        """Return the roles that a worker serves."""
        return [role for role in ROLES if self._workers.get(role) is worker]

    def worker_of(self, loaded: LoadedPair) -> PairWorker | None:
        """Return the worker of a loaded pair, or None if the pair was unloaded."""
        return next((worker for worker in self.workers if worker.loaded is loaded), None)

    def totals(self) -> EngineTotals:
        """Return the summed counters of all engines since they started."""
        together = EngineTotals()
        for scheduler in (worker.scheduler for worker in self.workers if worker.scheduler):
            together.add(scheduler.totals)
        return together

    def start(self) -> None:
        """Start loading the first pair; `ready` waits for the pair."""
        self._first.start()

    def close(self) -> None:
        """Cancel every request of every engine, then free the pairs."""
        workers = self.workers
        for worker in workers:
            worker.cancel()
        for worker in workers:
            worker.close()

    async def ready(self, role: PairRole, name: str = "") -> LoadedPair:
        """Return the pair called `name`, or of `role`; load it if necessary. A chat evicts no busy pair."""
        while True:
            role = self._role_named(name, role)
            if worker := self._worker_named(name, role):
                try:
                    return await worker.ready()
                except Exception:
                    if worker in self.workers:
                        raise
            async with self._changing:  # after an error: another worker replaced this one, or its load was a trial
                if self._is_there(role):
                    continue
                if role not in self._later:
                    command = f"localdflash {COMMANDS[role]}"
                    raise ModelError(f"no pair is loaded for {PURPOSES[role]}; run `{command}` to load one")
                await self._load((role,), self._later[role], "wait" if role == "completion" else "refuse")

    async def runs(self, loaded: LoadedPair) -> PairWorker | None:
        """Return the worker of a pair after any pending eviction is decided; None if the pair was unloaded."""
        if worker := self.worker_of(loaded):
            await worker.settled()
        return self.worker_of(loaded)

    async def load(self, role: PairRole | None, changes: Mapping[str, Any], others: Others = "wait") -> LoadedPair:
        """Load a pair for a role; if loading fails, keep the current pair.

        `role=None` assigns the pair to every role that it supports. `changes` overrides current options. `others`
        "refuse" raises ModelBusy. Cancellation has no effect once the new pair has begun to load.
        """
        if others == "refuse" and self._awaited:
            raise ModelBusy(f"{self._awaited.called} is answering, and another chat is waiting to replace it")
        async with self._changing:
            for worker in self.workers:
                with suppress(Exception):
                    await worker.ready()  # never interrupt a running load
            before = self._workers.get(role or self.main)
            options = before.options if before else self._later.get(role or self.main, self._first.options)
            if changes.get("pair", options.pair) != options.pair:
                options = replace(options, drafter="")  # the drafter belongs to the previous pair
            options = replace(options, **changes)
            roles: Sequence[PairRole] = (role,) if role else ROLES
            if not role and not await asyncio.to_thread(supports_fim, options.pair):
                roles = ("chat",)
                if left := self._workers.pop("completion", None):  # until the next request for that role
                    self._later["completion"] = left.options
                    if left not in self._workers.values():
                        await left.retire()
            return await self._load(roles, options, others)

    async def free_unused(self) -> None:
        """Unload pairs without a role that have been unused for `UNUSED_SECONDS`."""
        for worker in list(self._beside):
            unused = not worker.busy and time.monotonic() - worker.used > UNUSED_SECONDS
            if unused and not self._changing.locked():
                async with self._changing:
                    await self._drop(worker)

    async def switch_to_gpu(self) -> list[LoadedPair]:
        """Load idle pairs again whose check of the CUDA engine has passed meanwhile; return them."""
        loaded = list[LoadedPair]()
        for worker in self.workers:
            roles = self.roles(worker)
            if worker.passed_check and roles and not worker.busy and not self._changing.locked():
                async with self._changing:
                    worker.passed_check = False  # once: after a failure the pair stays where it is
                    await self._wait_until_idle(worker, "wait")
                    loaded.append(await _whole(self._swap(roles, self._first.beside(worker.options), [worker])))
        return loaded

    def _role_named(self, name: str, role: PairRole) -> PairRole:
        """Return the role whose unloaded pair is called `name`, else `role`; a chat never loads the completion pair."""
        later = [one for one in ROLES if role != "chat" and not self._is_there(one) and one in self._later]
        return next((one for one in later if self._later[one].pair == name), role)

    def _worker_named(self, name: str, role: PairRole) -> PairWorker | None:
        """Return the worker whose pair is called `name`, preferring the worker of `role`; else the worker of `role`."""
        of_role = self._workers.get(role) if self._is_there(role) else None
        candidates = [*([of_role] if of_role else []), *self.workers]
        return next((worker for worker in candidates if name and name in _names(worker)), of_role)

    def _is_there(self, role: PairRole) -> bool:
        worker = self._workers.get(role)
        return worker is not None and (worker.error is None or role not in self._later)

    async def _load(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Load a pair for `roles`; if loading fails, restore the previous pairs of these roles."""
        if tuple(roles) == ("completion",):
            await asyncio.to_thread(require_fim, options.pair)
        before = {role: worker.options for role, worker in self._workers.items()}
        try:
            return await self._with_room(roles, options, others)
        except Exception:
            for role, old in before.items():
                if role not in self._workers:
                    with suppress(Exception):  # the next request for the role retries and gets the error
                        await self._place((role,), old, "wait")
            raise

    async def _with_room(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Load a pair, and evict other pairs one by one until the pair fits with enough context."""
        while True:
            leaving = self._in_the_way(roles)
            # Completions never wait for a chat.
            roomy = leaving is not None and not (leaving.busy and "completion" in roles)
            try:
                return await self._place(roles, replace(options, roomy=roomy), others)
            except OutOfMemory as error:
                if not (leaving := self._in_the_way(roles)):
                    raise self._explained(error, roles, options) from error
            await self._wait_until_idle(leaving, others)
            await _whole(self._drop(leaving))

    def _in_the_way(self, roles: Sequence[PairRole]) -> PairWorker | None:
        """Return the worker to evict first for a pair of these roles: idle before busy, then the largest."""
        found = [worker for worker in self.workers if worker.loaded and self._may_leave(worker, roles)]
        return min(found, key=lambda worker: (worker.busy, -worker.size), default=None)

    def _may_leave(self, worker: PairWorker, roles: Sequence[PairRole]) -> bool:
        own = self.roles(worker)
        if "completion" not in own:
            return True
        if "completion" in roles:
            return "chat" in own  # the pair keeps the chat role only
        return time.monotonic() - worker.completed > UNUSED_SECONDS

    def _explained(self, error: OutOfMemory, roles: Sequence[PairRole], options: Options) -> OutOfMemory:
        kept = self._workers.get("completion")
        if tuple(roles) != ("chat",) or not kept:
            return error
        pairs = f"the chat pair {options.pair} does not fit next to the completion pair {kept.options.pair}"
        return OutOfMemory(f"{pairs}: {error}")

    async def _place(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Load a pair: reuse a worker with equal options, else start a new worker after the replaced ones are idle."""
        same = next((worker for worker in self.workers if worker.options == options and worker.error is None), None)
        replaced = [worker for worker in self._replaced(roles, options) if worker is not same]
        try:
            for worker in replaced:
                await self._wait_until_idle(worker, others)
        except BaseException:
            for worker in replaced:
                worker.stay()
            raise
        return await _whole(self._swap(roles, same or self._first.beside(options), replaced))

    def _replaced(self, roles: Sequence[PairRole], options: Options) -> list[PairWorker]:
        """Return the workers that serve no other role than `roles`; of chat pairs, failed ones or the same pair."""
        own = {worker: self.roles(worker) for worker in self.workers if set(self.roles(worker)) <= set(roles)}
        completes = "completion" in roles
        return [w for w in own if w.options.pair == options.pair or w.error or (own[w] and completes)]

    async def _swap(self, roles: Sequence[PairRole], worker: PairWorker, replaced: Sequence[PairWorker]) -> LoadedPair:
        """Retire the replaced workers, assign `roles` to `worker`, and start `worker` unless it is running."""
        for old in replaced:
            await old.retire()
        left = [one for one in self.workers if one not in replaced]
        before, runs = {role: one for role, one in self._workers.items() if one in left}, worker in left
        self._workers = before | dict.fromkeys(roles, worker)
        self._left -= set(roles)
        self._beside = [one for one in left if not self.roles(one)]
        try:
            if not runs:
                worker.start()
            return await worker.ready()
        except Exception:
            self._workers = before
            self._beside = [one for one in left if not self.roles(one)]
            raise

    async def _wait_until_idle(self, worker: PairWorker, others: Others) -> None:
        """Wait until a worker that is to be unloaded has no requests, or raise ModelBusy."""
        if others == "refuse" and worker.answering:
            raise ModelBusy(f"{worker.called} is answering in another chat")
        self._awaited = worker
        try:
            await worker.emptied(end=others == "end")
        finally:
            self._awaited = None

    async def _drop(self, worker: PairWorker) -> None:
        """Unload a worker's pair; the next request for one of its roles loads the pair again."""
        await worker.retire()
        for role in self.roles(worker):
            self._later[role] = self._workers.pop(role).options
            self._left.add(role)
        self._beside = [one for one in self._beside if one is not worker]


def _names(worker: PairWorker) -> set[str]:
    """Return the names by which a request can select a worker's pair, loaded or not."""
    return {worker.options.pair, *([worker.loaded.files.id] if worker.loaded else ())}


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; on cancellation, wait for `work` to finish before raising."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
