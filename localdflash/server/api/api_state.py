"""State that HTTP handlers share: engines, metrics, and each loaded pair's grammar compiler and infill planner."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from localdflash.base.errors import LocaldflashError, ModelBusy, did_you_mean
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.registry.registry import load_registry
from localdflash.server.activity import Activity
from localdflash.server.api.http_responses import ApiError, as_api_error
from localdflash.server.api.metrics import Metrics
from localdflash.server.engine_spec import PairRole
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort
from localdflash.text.grammar import Grammars

T = TypeVar("T")
ANY_MODEL = "localdflash"  # model name that selects the loaded model, even if others are refused


@dataclass
class AppState:
    """State of an HTTP app. `newest`: the newest `GenerationRequest` by document id.

    `refuses_unknown`: requests for a model that is no pair's name get an error; else the pair of the role answers them.
    """

    engines: Engines
    metrics: Metrics
    activity: Activity
    stop: Callable[[], None] | None = None
    listen: Callable[[TcpPort], AsyncGenerator[str]] | None = None
    refuses_unknown: bool = False
    is_stopping: bool = field(default=False, init=False)
    began: float = field(default_factory=time.monotonic, init=False)
    newest: WeakValueDictionary[str, object] = field(default_factory=WeakValueDictionary, init=False)
    _grammars: WeakKeyDictionary[LoadedPair, Grammars] = field(default_factory=WeakKeyDictionary, init=False)
    _planners: WeakKeyDictionary[LoadedPair, InfillPlanner] = field(default_factory=WeakKeyDictionary, init=False)

    async def ready(self, role: PairRole, model: str | None = None) -> LoadedPair:
        """Return the pair named `model`, else the pair of `role`; load it if necessary. ApiError if that fails."""
        model = None if model in ("", ANY_MODEL) else model
        try:
            loaded = await self.engines.ready(role, model or "")
        except ModelBusy:
            raise
        except LocaldflashError as error:
            reason = as_api_error(error)
            raise ApiError(503, f"no model: {reason}", code="model_not_loaded") from None
        if self.engines.device_lost:
            raise ApiError(503, "the daemon lost its GPU; restart localdflash", code="device_failed")
        if not self.engines.worker_of(loaded):
            raise ApiError(503, "the engine has stopped; restart localdflash", code="engine_stopped")
        if model and model not in (loaded.files.id, loaded.options.pair):
            await asyncio.to_thread(_check_foreign_name, model, loaded, refuses_unknown=self.refuses_unknown)
        return loaded

    async def prepare(self, loaded: LoadedPair, make: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `make`, which a thread calls. The pair is not unloaded meanwhile."""
        worker = self.engines.worker_of(loaded)
        with worker.keep_loaded() if worker else nullcontext():
            return await asyncio.to_thread(make, *arguments)

    def grammars(self, loaded: LoadedPair) -> Grammars:
        """Return the grammar compiler of this pair. It is cached, because preparing the vocabulary takes long."""
        if loaded not in self._grammars:
            self._grammars[loaded] = Grammars(loaded.tokenizer, loaded.vocab_size)
        return self._grammars[loaded]

    def infill_planner(self, loaded: LoadedPair) -> InfillPlanner:
        """Return the cached infill planner of this pair; ModelError if the target was not trained for infilling."""
        if loaded not in self._planners:
            self._planners[loaded] = InfillPlanner(loaded)
        return self._planners[loaded]


def _check_foreign_name(model: str, loaded: LoadedPair, *, refuses_unknown: bool) -> None:
    """Raise ApiError if `model` names another pair, or if `refuses_unknown` and it names none."""
    loaded_id, registry = loaded.files.id, load_registry()
    name = " ".join(model.split())[:100]
    if registry.is_pair_name(model):
        message = f"model {name!r} is not loaded, {loaded_id!r} is: `localdflash serve --pair {name}` loads it"
    elif refuses_unknown:
        hint = did_you_mean(name, [*registry.pairs, loaded_id, ANY_MODEL])
        message = f"no model {name!r}{hint or '.'} {loaded_id!r} is loaded; {ANY_MODEL!r} selects it"
    else:
        return
    raise ApiError(404, message, param="model", code="model_not_found")
