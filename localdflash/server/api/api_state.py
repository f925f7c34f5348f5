"""State shared by the handlers: engines, metrics, and the grammars of the loaded pairs."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
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

ANY_MODEL = "localdflash"  # whatever is loaded
# Names of Anthropic's models, which Claude Code requests, mean whatever is loaded, too.
ANTHROPIC_MODEL = re.compile(r"claude-.*|(haiku|sonnet|opus|opusplan)(\[1m\])?")


@dataclass
class AppState:
    """State of one app."""

    engines: Engines
    metrics: Metrics
    activity: Activity
    stop: Callable[[], None] | None = None
    listen: Callable[[TcpPort], AsyncGenerator[str]] | None = None
    began: float = field(default_factory=time.monotonic, init=False)
    newest: WeakValueDictionary[str, object] = field(default_factory=WeakValueDictionary, init=False)  # see `pieces`
    _grammars: WeakKeyDictionary[LoadedPair, Grammars] = field(default_factory=WeakKeyDictionary, init=False)
    _fillers: WeakKeyDictionary[LoadedPair, InfillPlanner] = field(default_factory=WeakKeyDictionary, init=False)

    async def ready(self, role: PairRole, model: str | None = None) -> LoadedPair:
        """Return the pair called `model`, else of the role; load it if necessary. ApiError if that fails."""
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
        is_known = model in (None, loaded.files.id, loaded.options.pair)
        if model and not is_known and not ANTHROPIC_MODEL.fullmatch(model):
            raise await asyncio.to_thread(_unknown_model, model, loaded)
        return loaded

    def grammars(self, loaded: LoadedPair) -> Grammars:
        """Return the grammar compiler of this pair; it is cached, because it prepares the vocabulary."""
        if loaded not in self._grammars:
            self._grammars[loaded] = Grammars(loaded.tokenizer, loaded.vocab_size)
        return self._grammars[loaded]

    def filler(self, loaded: LoadedPair) -> InfillPlanner:
        """Return the planner of this pair's completions, which caches encoded lines; ModelError if it cannot infill."""
        if loaded not in self._fillers:
            self._fillers[loaded] = InfillPlanner(loaded)
        return self._fillers[loaded]


def _unknown_model(model: str, loaded: LoadedPair) -> ApiError:
    there = loaded.files.id
    pairs = load_registry().pairs
    if model in pairs:
        message = f"model {model!r} is not loaded, {there!r} is: `localdflash serve --pair {model}` loads it"
    else:
        name = " ".join(model.split())[:100]
        hint = did_you_mean(name, [*pairs, there, ANY_MODEL])
        message = f"no model {name!r}{hint or '.'} {there!r} is loaded, and {ANY_MODEL!r} means whatever is"
    return ApiError(404, message, param="model", code="model_not_found")
