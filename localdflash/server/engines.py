"""Loaded pairs by role: one pair for chat and one for completion, or one pair for both.

Each pair has a `PairWorker`. A chat can load further pairs, which have no role: only requests that name them use them.

If memory is short, `Engines` unloads chat pairs first: idle pairs before busy ones, larger pairs before smaller ones.
A chat can evict the completion pair only after `UNUSED_SECONDS` without a completion. A request for an unloaded pair
loads that pair again; no other pair answers instead. If a chat pair is busy, a completion pair is loaded with a smaller
drafter or context. If it does not fit even so, it waits for the chat. All methods run on one event loop.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from localdflash.base.errors import ModelBusy, ModelError, OutOfMemory
from localdflash.engine.scheduler import EngineTotals
from localdflash.loading.completion_support import require_completion, supports_completion
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import ROLES, EvictionPolicy, PairRole
from localdflash.server.worker import PairWorker

PURPOSES: Mapping[PairRole, str] = {"chat": "the chat", "completion": "completions"}
COMMANDS: Mapping[PairRole, str] = {"chat": "chat", "completion": "complete"}
UNUSED_SECONDS = 600.0  # idle time until a pair without a role is unloaded, or a chat may evict the completion pair
T = TypeVar("T")


class Engines:
    """Registry of the daemon's pair workers by role. `on_demand`: options of pairs to load at their first request."""

    def __init__(
        self, first: PairWorker, roles: Sequence[PairRole] = ROLES, on_demand: Mapping[PairRole, Options] | None = None
    ) -> None:
        self._first = first  # makes the other workers, which share its settings
        self._workers: dict[PairRole, PairWorker] = dict.fromkeys(roles, first)
        self._unassigned: list[PairWorker] = []  # workers without a role; chats request their pairs by name
        self._on_demand: dict[PairRole, Options] = dict(on_demand or {})
        self._evicted_roles: set[PairRole] = set()
        self._changing = asyncio.Lock()
        self._evicting: PairWorker | None = None  # worker that `_wait_until_idle` waits for

    @property
    def workers(self) -> list[PairWorker]:
        """Return all workers: chat first, then completion, then workers without a role."""
        assigned = [self._workers[role] for role in ROLES if role in self._workers]
        return list(dict.fromkeys([*assigned, *self._unassigned]))

    @property
    def main_role(self) -> PairRole:
        """Return the role of requests that name no role."""
        return "completion" if "completion" in self._workers and "chat" not in self._workers else "chat"

    @property
    def raw_prompt_role(self) -> PairRole:
        """Return the role of raw prompts (`/v1/completions`), which editors send too."""
        return "completion" if "completion" in (*self._workers, *self._evicted_roles) else "chat"

    @property
    def device_lost(self) -> bool:
        """Return whether a worker lost its device; only a new process can recover."""
        return any(worker.device_lost.is_set() for worker in self.workers)

    @property
    def error(self) -> BaseException | None:
        """Return the first load error if every pair failed to load, else None."""
        errors = [worker.error for worker in self.workers]
        return next(iter(errors), None) if all(errors) else None

    def worker(self, role: PairRole) -> PairWorker | None:
        """Return the worker of a role; its pair may still be loading."""
        return self._workers.get(role)

    def roles(self, worker: PairWorker) -> list[PairRole]:
        """Return the roles that a worker serves."""
        return [role for role in ROLES if self._workers.get(role) is worker]

    @property
    def on_demand(self) -> dict[PairRole, str]:
        """Return the pairs that the next request for a role loads."""
        return {role: options.pair for role, options in self._on_demand.items() if not self._has_worker(role)}

    def worker_called(self, name: str) -> PairWorker | None:
        """Return the worker whose pair is called `name`, loaded or not."""
        return next((worker for worker in self.workers if name in _names(worker)), None)

    def worker_of(self, loaded: LoadedPair) -> PairWorker | None:
        """Return the worker of a loaded pair, or None if the pair was unloaded."""
        return next((worker for worker in self.workers if worker.loaded is loaded), None)

    def totals(self) -> EngineTotals:
        """Return the summed counters of all loaded pairs since they were loaded."""
        summed = EngineTotals()
        for scheduler in (worker.scheduler for worker in self.workers if worker.scheduler):
            summed.add(scheduler.totals)
        return summed

    def start(self) -> None:
        """Start loading the first pair; `ready` waits for the pair."""
        self._first.start()

    def close(self) -> None:
        """Cancel every request of every worker, then free the pairs."""
        workers = self.workers
        for worker in workers:
            worker.cancel()
        for worker in workers:
            worker.close()

    async def ready(self, role: PairRole, name: str = "") -> LoadedPair:
        """Return the pair called `name` if it is known, else that of `role`; load it if needed; errors as in `load`."""
        while True:
            role = self._role_named(name, role)
            if worker := self._worker_named(name, role):
                try:
                    return await worker.ready()
                except Exception:
                    if worker in self.workers:
                        raise
            async with self._changing:  # a failed worker was replaced meanwhile, or `_swap` undid its load
                if self._has_worker(role):
                    continue
                if role not in self._on_demand:
                    command = f"localdflash {COMMANDS[role]}"
                    raise ModelError(f"no pair is loaded for {PURPOSES[role]}; run `{command}` to load one")
                await self._load((role,), self._on_demand[role], "wait" if role == "completion" else "refuse")

    async def load(
        self, role: PairRole | None, changes: Mapping[str, Any], policy: EvictionPolicy = "wait"
    ) -> LoadedPair:
        """Load a pair for a role; if loading fails, keep or restore the current pair and raise the error.

        `role=None` assigns the pair to every role that it supports. `changes` overrides current options; `policy` may
        raise ModelBusy. Once the new pair has begun to load, cancellation waits for the load.
        """
        if policy == "refuse" and self._evicting:
            raise ModelBusy(f"{self._evicting.display_name} is answering, and another chat is waiting to replace it")
        async with self._changing:
            for worker in self.workers:
                with suppress(Exception):
                    await worker.ready()  # never interrupt a running load
            before = self._workers.get(role or self.main_role)
            options = before.options if before else self._on_demand.get(role or self.main_role, self._first.options)
            if changes.get("pair", options.pair) != options.pair:
                options = replace(options, drafter="")  # it is the drafter of the previous pair
            options = replace(options, **changes)
            roles: Sequence[PairRole] = (role,) if role else ROLES
            if not role and not await asyncio.to_thread(supports_completion, options.pair):
                roles = ("chat",)
                if removed := self._workers.pop("completion", None):  # the next completion loads it again
                    self._on_demand["completion"] = removed.options
                    if removed not in self._workers.values():
                        await removed.retire()
            return await self._load(roles, options, policy)

    async def load_next_to_others(self, pair: str) -> LoadedPair:
        """Load a pair for the roles whose next request would load it, else for the chat; errors as in `load`."""
        roles = [role for role, name in self.on_demand.items() if name == pair] or ["chat"]
        return await self.load(None if len(roles) > 1 else roles[0], {"pair": pair})

    async def unload(self, worker: PairWorker) -> None:
        """Unload a pair after its running requests; the next request for one of its roles loads the pair again."""
        async with self._changing:
            with suppress(Exception):
                await worker.ready()  # never interrupt a running load
            if worker in self.workers:
                await self._wait_until_idle(worker, "wait")
                await _finish_despite_cancel(self._unload(worker))

    async def free_unused(self) -> None:
        """Unload pairs without a role that have been unused for `UNUSED_SECONDS`."""
        for worker in list(self._unassigned):
            is_unused = not worker.is_busy and time.monotonic() - worker.last_used > UNUSED_SECONDS
            if is_unused and not self._changing.locked():
                async with self._changing:
                    await self._unload(worker)

    async def switch_to_gpu(self) -> list[LoadedPair]:
        """Reload idle pairs that passed the CUDA check while another backend ran them; return these pairs."""
        loaded = list[LoadedPair]()
        for worker in self.workers:
            roles = self.roles(worker)
            if worker.passed_check and roles and not worker.is_busy and not self._changing.locked():
                async with self._changing:
                    await self._wait_until_idle(worker, "wait")
                    await _finish_despite_cancel(self._unload(worker))  # if loading fails, the next request retries
                    loaded.append(await self._load(roles, worker.options, "wait"))
        return loaded

    def _role_named(self, name: str, role: PairRole) -> PairRole:
        """Return the role whose unloaded pair is called `name`, else `role`; a chat never loads the completion pair."""
        unloaded = [one for one in ROLES if role != "chat" and not self._has_worker(one) and one in self._on_demand]
        return next((one for one in unloaded if self._on_demand[one].pair == name), role)

    def _worker_named(self, name: str, role: PairRole) -> PairWorker | None:
        """Return the worker whose pair is called `name`, preferring the worker of `role`; else the worker of `role`."""
        of_role = self._workers.get(role) if self._has_worker(role) else None
        return of_role if of_role and name in _names(of_role) else self.worker_called(name) or of_role

    def _has_worker(self, role: PairRole) -> bool:
        """Return whether a worker serves the role. A failed worker counts only if `_on_demand` cannot replace it."""
        worker = self._workers.get(role)
        return worker is not None and (worker.error is None or role not in self._on_demand)

    async def _load(self, roles: Sequence[PairRole], options: Options, policy: EvictionPolicy) -> LoadedPair:
        """Load a pair for `roles`; if that fails, reload the pairs of roles that lost their worker."""
        if tuple(roles) == ("completion",):
            await asyncio.to_thread(require_completion, options.pair)
        before = {role: worker.options for role, worker in self._workers.items()}
        try:
            return await self._load_evicting(roles, options, policy)
        except Exception:
            for role, old in before.items():
                if role not in self._workers:
                    with suppress(Exception):  # the next request for the role retries and gets the error
                        await self._load_worker((role,), old, "wait")
            raise

    async def _load_evicting(self, roles: Sequence[PairRole], options: Options, policy: EvictionPolicy) -> LoadedPair:
        """Load a pair; as long as it does not fit with enough context, evict another pair and try again."""
        while True:
            victim = self._next_victim(roles)
            can_evict = victim is not None and not (victim.is_busy and "completion" in roles)
            try:
                return await self._load_worker(roles, replace(options, can_evict=can_evict), policy)
            except OutOfMemory as error:
                if not (victim := self._next_victim(roles)):
                    raise self._describe_conflict(error, roles, options) from error
            await self._wait_until_idle(victim, policy)
            await _finish_despite_cancel(self._unload(victim))

    def _next_victim(self, roles: Sequence[PairRole]) -> PairWorker | None:
        """Return the worker to evict first for a pair of these roles: idle before busy, then the largest."""
        candidates = [worker for worker in self.workers if worker.loaded and self._may_evict(worker, roles)]
        return min(candidates, key=lambda worker: (worker.is_busy, -worker.size), default=None)

    def _may_evict(self, worker: PairWorker, roles: Sequence[PairRole]) -> bool:
        """Return whether a pair for these roles may evict the pair of `worker`."""
        worker_roles = self.roles(worker)
        if "completion" not in worker_roles:
            return True
        if "completion" in roles:
            return "chat" in worker_roles  # the new pair takes `completion` over, and a chat pair is left
        return time.monotonic() - worker.last_completion > UNUSED_SECONDS

    def _describe_conflict(self, error: OutOfMemory, roles: Sequence[PairRole], options: Options) -> OutOfMemory:
        kept = self._workers.get("completion")
        if tuple(roles) != ("chat",) or not kept:
            return error
        pairs = f"the chat pair {options.pair} does not fit next to the completion pair {kept.options.pair}"
        return OutOfMemory(f"{pairs}: {error}")

    async def _load_worker(self, roles: Sequence[PairRole], options: Options, policy: EvictionPolicy) -> LoadedPair:
        """Load a pair: reuse a worker with the same options, or start a worker once the retiring ones are idle."""
        same = next((worker for worker in self.workers if worker.options == options and worker.error is None), None)
        retiring = [worker for worker in self._workers_to_retire(roles, options) if worker is not same]
        try:
            for worker in retiring:
                await self._wait_until_idle(worker, policy)
        except BaseException:
            for worker in retiring:
                worker.cancel_eviction()
            raise
        return await _finish_despite_cancel(self._swap(roles, same or self._first.new_worker(options), retiring))

    def _workers_to_retire(self, roles: Sequence[PairRole], options: Options) -> list[PairWorker]:
        """Return workers with no role outside `roles` that failed, have the requested pair, or lose `completion`."""
        own = {worker: self.roles(worker) for worker in self.workers if set(self.roles(worker)) <= set(roles)}
        loses = "completion" in roles  # a chat pair that only loses its role stays loaded
        return [w for w in own if w.options.pair == options.pair or w.error or (own[w] and loses)]

    async def _swap(self, roles: Sequence[PairRole], worker: PairWorker, retiring: Sequence[PairWorker]) -> LoadedPair:
        """Retire workers, assign `roles` to `worker`, start it if it is new, and wait for its pair."""
        for old in retiring:
            await old.retire()
        remaining = [one for one in self.workers if one not in retiring]
        before = {role: one for role, one in self._workers.items() if one in remaining}
        self._workers = before | dict.fromkeys(roles, worker)
        self._evicted_roles -= set(roles)
        self._unassigned = [one for one in remaining if not self.roles(one)]
        try:
            if worker not in remaining:
                worker.start()
            return await worker.ready()
        except Exception:
            self._workers = before
            self._unassigned = [one for one in remaining if not self.roles(one)]
            raise

    async def _wait_until_idle(self, worker: PairWorker, policy: EvictionPolicy) -> None:
        """Wait until a worker has no requests, end them, or raise ModelBusy, according to the policy."""
        if policy == "refuse" and worker.is_answering:
            raise ModelBusy(f"{worker.display_name} is answering in another chat")
        self._evicting = worker
        try:
            await worker.wait_idle(cancel=policy == "end")
        finally:
            self._evicting = None

    async def _unload(self, worker: PairWorker) -> None:
        """Unload a worker's pair; the next request for one of its roles loads the pair again."""
        await worker.retire()
        for role in self.roles(worker):
            self._on_demand[role] = self._workers.pop(role).options
            self._evicted_roles.add(role)
        self._unassigned = [one for one in self._unassigned if one is not worker]


def _names(worker: PairWorker) -> set[str]:
    """Return the names by which a request can select a worker's pair, loaded or not."""
    return {worker.options.pair, *([worker.loaded.files.id] if worker.loaded else ())}


async def _finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; on cancellation, let `work` finish, and only then raise CancelledError."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
