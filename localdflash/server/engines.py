"""The pairs that are loaded, by what they are for: one for the chat and one for completions, or one for both.

Completions go before everything else. Where memory does not hold both, the chat's pair is unloaded; a request for it
loads it again, if it fits by then. Nothing else ever answers for it. All of this belongs to one event loop.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from localdflash.backend.options import Options
from localdflash.engine.scheduler import Totals
from localdflash.errors import ModelError, OutOfMemory
from localdflash.loading.filling import check_fills, fills
from localdflash.loading.load import LoadedPair
from localdflash.server.wanted import ROLES, PairRole
from localdflash.server.worker import PairWorker

PURPOSE: Mapping[PairRole, str] = {"chat": "the chat", "completion": "completions"}
COMMANDS: Mapping[PairRole, str] = {"chat": "chat", "completion": "complete"}


class Engines:
    """`first` is there for `roles`; `later` is what another role gets once somebody asks for it."""

    def __init__(
        self,
        first: PairWorker,
        roles: Sequence[PairRole] = ROLES,
        later: Mapping[PairRole, Options] | None = None,
    ) -> None:
        self._first = first  # which makes the others, too
        self._workers: dict[PairRole, PairWorker] = dict.fromkeys(roles, first)
        self._later: dict[PairRole, Options] = dict(later or {})
        self._changing = asyncio.Lock()

    @property
    def workers(self) -> list[PairWorker]:
        """All engines, that of the chat first."""
        return list(dict.fromkeys(self._workers[role] for role in ROLES if role in self._workers))

    @property
    def main(self) -> PairRole:
        """The role of requests that do not say what they are for."""
        return "completion" if "completion" in self._workers and "chat" not in self._workers else "chat"

    @property
    def continuing(self) -> PairRole:
        """The role of prompts that are to be continued as they are, which editors send too."""
        return "completion" if "completion" in self._workers else "chat"

    @property
    def failed(self) -> bool:
        """Whether a device is lost: only a new process can go on."""
        return any(worker.failed.is_set() for worker in self.workers)

    @property
    def error(self) -> BaseException | None:
        """Why no pair at all is there, if loading failed."""
        errors = [worker.error for worker in self.workers]
        return next(iter(errors), None) if all(errors) else None

    def worker(self, role: PairRole) -> PairWorker | None:
        """The engine of a role, which may still be loading."""
        return self._workers.get(role)

    def roles(self, worker: PairWorker) -> list[PairRole]:
        """What an engine is for."""
        return [role for role in ROLES if self._workers.get(role) is worker]

    def worker_of(self, loaded: LoadedPair) -> PairWorker | None:
        """The engine that runs a pair; None if it was unloaded meanwhile."""
        return next((worker for worker in self.workers if worker.loaded is loaded), None)

    def named(self, name: str, role: PairRole) -> PairRole:
        """The role whose pair has this name, which need not be loaded yet; `role` if none has."""
        for one in sorted(ROLES, key=lambda one: one != role):
            worker, options = self._workers.get(one), self._later.get(one)
            names = {options.pair} if options and not worker else set()
            if worker:
                names = {worker.options.pair, *([worker.loaded.files.id] if worker.loaded else ())}
            if name in names:
                return one
        return role

    def totals(self) -> Totals:
        """What all engines did since they started."""
        together = Totals()
        for worker in self.workers:
            if worker.scheduler:
                together.add(worker.scheduler.totals)
        return together

    def start(self) -> None:
        """Load the first pair; `ready` waits for it."""
        self._first.start()

    def close(self) -> None:
        """Cancel every request of every engine, then free the pairs."""
        workers = self.workers
        for worker in workers:
            worker.cancel()
        for worker in workers:
            worker.close()

    async def ready(self, role: PairRole) -> LoadedPair:
        """The pair of a role, after waiting for it or loading it; what keeps it from being loaded is raised."""
        if not self._is_there(role):
            async with self._changing:
                if not self._is_there(role):
                    await self._load((role,), self._options_later(role))
        return await self._workers[role].ready()

    async def load(self, role: PairRole | None, changes: Mapping[str, Any]) -> LoadedPair:
        """Load a pair for a role, after the requests that it has; if that fails the old one stays.

        Without a role it is for all that it can do. `changes` are fields of `Options`, the others stay as they are.
        """
        async with self._changing:
            for worker in self.workers:
                with suppress(Exception):
                    await worker.ready()  # a load that is under way is not interrupted
            before = self._workers.get(role or self.main)
            usual = self._later.get(role or self.main, self._first.options)
            options = before.options if before else usual
            if changes.get("pair", options.pair) != options.pair:
                options = replace(options, drafter="")  # it was for the pair of before
            options = replace(options, **changes)
            roles: Sequence[PairRole] = (role,) if role else ROLES
            if not role and not await asyncio.to_thread(fills, options.pair):
                roles = ("chat",)
                await self._free("completion")
            return await self._load(roles, options)

    def _is_there(self, role: PairRole) -> bool:
        worker = self._workers.get(role)
        return worker is not None and (worker.error is None or role not in self._later)

    def _options_later(self, role: PairRole) -> Options:
        if options := self._later.get(role):
            return options
        raise ModelError(f"no pair is loaded for {PURPOSE[role]}: load one with `localdflash {COMMANDS[role]}`")

    async def _load(self, roles: Sequence[PairRole], options: Options) -> LoadedPair:
        """Place a pair; where that of completions does not fit, the chat's is unloaded first."""
        if tuple(roles) == ("completion",):
            await asyncio.to_thread(check_fills, options.pair)
        try:
            return await self._placed(roles, options)
        except OutOfMemory as error:
            chat, other = self._workers.get("chat"), self._workers.get("completion")
            if tuple(roles) == ("completion",) and chat and chat is not other:
                await self._free("chat")
                return await self._placed(roles, options)
            if tuple(roles) == ("chat",) and other and chat is not other:
                beside = f"does not fit beside {other.options.pair}, the pair of completions"
                raise OutOfMemory(f"{options.pair}, the pair of the chat, {beside}: {error}") from error
            raise

    async def _placed(self, roles: Sequence[PairRole], options: Options) -> LoadedPair:
        """Load a pair: shared with another role, in the place of what these roles have alone, or beside the others."""
        before = dict(self._workers)
        own = [worker for worker in self.workers if set(self.roles(worker)) <= set(roles)]
        same = next((worker for worker in self.workers if worker.options == options and worker.error is None), None)
        for worker in own:
            if worker is not same and (same or worker is not own[0]):
                await self._unload(worker)
        worker = same or (own[0] if own else self._first.beside(options))
        self._workers.update(dict.fromkeys(roles, worker))
        try:
            if not same and own:
                await worker.swap(options)
            elif not same:
                worker.start()
            return await worker.ready()
        except Exception:
            self._workers = {role: one for role, one in before.items() if one in self.workers}
            raise

    async def _free(self, role: PairRole) -> None:
        """Take a role's pair away, until somebody asks for it."""
        worker = self._workers.pop(role, None)
        if not worker:
            return
        self._later[role] = worker.options
        if worker not in self._workers.values():
            await worker.retire()

    async def _unload(self, worker: PairWorker) -> None:
        for role in self.roles(worker):
            await self._free(role)
