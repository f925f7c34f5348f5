"""The pairs that are loaded, by what they are for: one for the chat and one for completions, or one for both.

Other chats may have other pairs, which stay beside these as long as they are used and memory holds them; only requests
that name them get them. Where memory is short a pair of the chats leaves, an idle one before one that answers, the
larger one first; that of completions does so for a chat only if nobody has asked for any in a while. Nothing else ever
answers for a pair that left: a request for it loads it again, that of a chat if it fits by then. All of this belongs to
one event loop.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from localdflash.base.errors import EngineGone, ModelBusy, ModelError, OutOfMemory
from localdflash.engine.scheduler import EngineTotals
from localdflash.loading.filling import can_fill, check_can_fill
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import ROLES, Others, PairRole
from localdflash.server.worker import PairWorker

PURPOSES: Mapping[PairRole, str] = {"chat": "the chat", "completion": "completions"}
COMMANDS: Mapping[PairRole, str] = {"chat": "chat", "completion": "complete"}
# Seconds without an answer after which a pair leaves that only requests which name it get; without a completion, after
# which theirs may leave for a chat's.
UNUSED_SECONDS = 600.0
T = TypeVar("T")


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
        self._beside: list[PairWorker] = []  # what other chats named, without a role
        self._later: dict[PairRole, Options] = dict(later or {})
        self._left: set[PairRole] = set()  # whose pairs made room for others
        self._changing = asyncio.Lock()
        self._awaited: PairWorker | None = None  # whose requests somebody waits for who holds that lock

    @property
    def workers(self) -> list[PairWorker]:
        """Return all engines, that of the chat first, those without a role last."""
        return list(dict.fromkeys([*(self._workers[role] for role in ROLES if role in self._workers), *self._beside]))

    @property
    def main(self) -> PairRole:
        """Return the role of requests that do not say what they are for."""
        return "completion" if "completion" in self._workers and "chat" not in self._workers else "chat"

    @property
    def continuing(self) -> PairRole:
        """Return the role of prompts that are to be continued as they are, which editors send too."""
        return "completion" if "completion" in (*self._workers, *self._left) else "chat"

    @property
    def failed(self) -> bool:
        """Return whether a device is lost: only a new process can go on."""
        return any(worker.failed.is_set() for worker in self.workers)

    @property
    def error(self) -> BaseException | None:
        """Why no pair at all is there, if loading failed."""
        errors = [worker.error for worker in self.workers]
        return next(iter(errors), None) if all(errors) else None

    def worker(self, role: PairRole) -> PairWorker | None:
        """Return the engine of a role, which may still be loading."""
        return self._workers.get(role)

    def roles(self, worker: PairWorker) -> list[PairRole]:
        """Return what an engine is for, where a request does not name it."""
        return [role for role in ROLES if self._workers.get(role) is worker]

    def worker_of(self, loaded: LoadedPair) -> PairWorker | None:
        """Return the engine that runs a pair; None if it was unloaded meanwhile."""
        return next((worker for worker in self.workers if worker.loaded is loaded), None)

    def totals(self) -> EngineTotals:
        """Return what all engines did since they started."""
        together = EngineTotals()
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

    async def ready(self, role: PairRole, name: str = "") -> LoadedPair:
        """Return the pair that is called `name`, or else that of a role, after waiting for it or loading it.

        What keeps it from being loaded is raised. For a chat no pair is taken away that is answering somebody else.
        """
        while True:
            role = self._role_named(name, role)
            if worker := self._worker_named(name, role):
                try:
                    return await worker.ready()
                except EngineGone:
                    if worker in self.workers:
                        raise
                    continue  # another one took its place
            async with self._changing:
                if not self._is_there(role):
                    others: Others = "wait" if role == "completion" else "refuse"
                    await self._load((role,), self._options_later(role), others)

    async def runs(self, loaded: LoadedPair) -> PairWorker | None:
        """Return the engine that runs a pair, once it is certain that it stays; None if it was unloaded."""
        if worker := self.worker_of(loaded):
            await worker.settled()
        return self.worker_of(loaded)

    async def load(self, role: PairRole | None, changes: Mapping[str, Any], others: Others = "wait") -> LoadedPair:
        """Load a pair for a role; if that fails the old one stays.

        Without a role it is for all that it can do. `changes` are fields of `Options`, the others stay as they are.
        `others`: what becomes of answers by a pair that has to go for it; ModelBusy if they are not to be touched.
        Cancelling this changes nothing until the new pair begins to load, and then nothing either.
        """
        if others == "refuse" and self._awaited:
            raise ModelBusy(f"{self._awaited.called} is answering, and another chat waits for its place")
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
            if not role and not await asyncio.to_thread(can_fill, options.pair):
                roles = ("chat",)
                await self._free_role("completion")
            return await self._load(roles, options, others)

    async def free_unused(self) -> None:
        """Free pairs without a role that nobody has used for a while."""
        for worker in list(self._beside):
            unused = not worker.busy and time.monotonic() - worker.used > UNUSED_SECONDS
            if unused and not self._changing.locked():
                async with self._changing:
                    await self._drop(worker)

    def _role_named(self, name: str, role: PairRole) -> PairRole:
        """Return the role that is to have the pair of this name once it is asked for; `role` if none is, or for a chat.

        A chat's question loads no pair for completions, which would go before it from then on.
        """
        later = [one for one in ROLES if role != "chat" and not self._is_there(one) and one in self._later]
        return next((one for one in later if self._later[one].pair == name), role)

    def _worker_named(self, name: str, role: PairRole) -> PairWorker | None:
        """Return the engine whose pair has this name, that of the role before others; else that of the role."""
        of_role = self._workers.get(role) if self._is_there(role) else None
        candidates = [*([of_role] if of_role else []), *self.workers]
        return next((worker for worker in candidates if name and name in _names(worker)), of_role)

    def _is_there(self, role: PairRole) -> bool:
        worker = self._workers.get(role)
        return worker is not None and (worker.error is None or role not in self._later)

    def _options_later(self, role: PairRole) -> Options:
        if options := self._later.get(role):
            return options
        raise ModelError(f"no pair is loaded for {PURPOSES[role]}: load one with `localdflash {COMMANDS[role]}`")

    async def _load(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Load a pair for roles; if that fails they have what they had before."""
        if tuple(roles) == ("completion",):
            await asyncio.to_thread(check_can_fill, options.pair)
        before = {role: worker.options for role, worker in self._workers.items()}
        try:
            return await self._with_room(roles, options, others)
        except Exception:
            for role, old in before.items():
                if role not in self._workers:
                    with suppress(Exception):  # the next request for it tries again, and is told
                        await self._placed((role,), old, "wait")
            raise

    async def _with_room(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Place a pair; as long as it does not fit, or would be cramped, another one leaves."""
        while True:
            leaving = self._in_the_way(roles)
            roomy = leaving is not None and not (leaving.busy and "completion" in roles)  # these wait for no chat
            try:
                return await self._placed(roles, replace(options, roomy=roomy), others)
            except OutOfMemory as error:
                if not (leaving := self._in_the_way(roles)):
                    raise self._explained(error, roles, options) from error
            await self._emptied(leaving, others)
            await _whole(self._drop(leaving))

    def _in_the_way(self, roles: Sequence[PairRole]) -> PairWorker | None:
        """Return the pair that is to leave first for one of these roles."""
        found = [worker for worker in self.workers if worker.loaded and self._may_leave(worker, roles)]
        return min(found, key=lambda worker: (worker.busy, -worker.size), default=None)

    def _may_leave(self, worker: PairWorker, roles: Sequence[PairRole]) -> bool:
        own = self.roles(worker)
        if "completion" not in own:
            return True
        if "completion" in roles:
            return "chat" in own  # whose alone it is from now on
        return time.monotonic() - worker.completed > UNUSED_SECONDS

    def _explained(self, error: OutOfMemory, roles: Sequence[PairRole], options: Options) -> OutOfMemory:
        kept = self._workers.get("completion")
        if tuple(roles) != ("chat",) or not kept:
            return error
        beside = f"does not fit beside {kept.options.pair}, the pair of completions"
        return OutOfMemory(f"{options.pair}, the pair of the chat, {beside}: {error}")

    async def _placed(self, roles: Sequence[PairRole], options: Options, others: Others) -> LoadedPair:
        """Load a pair: shared with another role, in the place of what it replaces, or beside the others."""
        same = next((worker for worker in self.workers if worker.options == options and worker.error is None), None)
        replaced = [worker for worker in self._replaced(roles, options) if worker is not same]
        try:
            for worker in replaced:
                await self._emptied(worker, others)
        except BaseException:
            for worker in replaced:
                worker.stay()
            raise
        return await _whole(self._put(roles, same or self._first.beside(options), replaced))

    def _replaced(self, roles: Sequence[PairRole], options: Options) -> list[PairWorker]:
        """What goes for a pair: all that these roles alone have; a chat's only if it is the same pair, run otherwise,
        or never came to be.
        """
        found = []
        for worker in self.workers:
            own = self.roles(worker)
            if not set(own) <= set(roles):
                continue
            if worker.options.pair == options.pair or worker.error or (own and "completion" in roles):
                found.append(worker)
        return found

    async def _put(self, roles: Sequence[PairRole], worker: PairWorker, replaced: Sequence[PairWorker]) -> LoadedPair:
        """Give roles an engine, which is started unless it runs; what is replaced is freed before."""
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

    async def _emptied(self, worker: PairWorker, others: Others) -> None:
        """Wait until a pair that has to go has no requests."""
        if others == "refuse" and worker.answering:
            raise ModelBusy(f"{worker.called} is answering in another chat")
        self._awaited = worker
        try:
            await worker.emptied(end=others == "end")
        finally:
            self._awaited = None

    async def _free_role(self, role: PairRole) -> None:
        """Take a role's pair away, until somebody asks for it."""
        if worker := self._workers.pop(role, None):
            self._later[role] = worker.options
            if worker not in self._workers.values():
                await worker.retire()

    async def _drop(self, worker: PairWorker) -> None:
        """Free a pair; a role that had it gets it again when somebody asks for it."""
        await worker.retire()
        for role in self.roles(worker):
            self._later[role] = self._workers.pop(role).options
            self._left.add(role)
        self._beside = [one for one in self._beside if one is not worker]


def _names(worker: PairWorker) -> set[str]:
    """Return what a request may call the pair of an engine, which need not be loaded yet."""
    return {worker.options.pair, *([worker.loaded.files.id] if worker.loaded else ())}


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that goes on to its end even if this is cancelled."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
