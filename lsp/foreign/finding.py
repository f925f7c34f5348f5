"""Detect what a server can do: its kind, which of its models can infill, and by which prompt.

Nothing is configured, and no kind is recognised by its name: the server is asked for an endpoint that only its kind
has, then for what a completion needs. Our own prompt is preferred if the server accepts raw prompts.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from localdflash.base.errors import EngineGone, LocaldflashError, ModelError, UsageError
from localdflash.lsp.engine_completer import CompletionSource, DaemonSource
from localdflash.lsp.foreign import families
from localdflash.lsp.foreign.llama_server import InfillLlama, RawLlama, model_of
from localdflash.lsp.foreign.ollama_server import Ollama
from localdflash.lsp.foreign.openai_server import OpenAi
from localdflash.lsp.foreign.pieces import InfillServer, InfillSource
from localdflash.lsp.foreign.remote_prompt import PieceVocabulary, PrefixSuffixBuilder, PromptBuilder
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.server.refusals import error_of
from localdflash.text.fim_formats import FORMATS, FimFormat, detect

Json = dict[str, Any]
DENIED_STATUSES = (401, 403)
DETECTION_SECONDS = 60.0  # seconds: Ollama may load a model first
MAX_MODELS = 8  # that are tried, where none is asked for
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\n\n" + "print(add(1, 2))\n" * 4
MIN_SUFFIX_TOKENS = 12  # tokens that AFTER adds to a prompt at least, where it is not ignored


class ServerProbe:
    """One connection for detection. `denied`: a response required a key."""

    def __init__(self, address: Address) -> None:
        self.address, self.denied = address, False
        self._connection = ClientConnection(address, bytes, tolerant=True)

    async def get(self, target: str) -> Json | None:
        """Return the JSON object of a GET; None if there is none. Raises EngineGone while the server loads its
        model.
        """
        status, content = await self._ask("GET", target)
        return content if status == 200 else None

    async def post(self, target: str, body: Mapping[str, object]) -> Json | None:
        """Return the JSON object of a POST, like `get`."""
        status, content = await self._ask("POST", target, body)
        return content if status == 200 else None

    async def post_with_key(self, target: str, body: Mapping[str, object]) -> Json | None:
        """Post to an endpoint that no other kind of server has; raise UsageError if it requires a key."""
        status, content = await self._ask("POST", target, body)
        if status in DENIED_STATUSES:
            raise self.no_key()
        return content if status == 200 else None

    def no_key(self) -> UsageError:
        """Return the error about the missing or wrong key."""
        if self.address.key:
            return UsageError(f"{self.address.place} refuses the key that [server] key_file names")
        return UsageError(f"{self.address.place} wants a key: put it into a file, and its path into [server] key_file")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _ask(self, method: str, target: str, body: Mapping[str, object] | None = None) -> tuple[int, Json | None]:
        status, data = await self._connection.answer(method, target, body)
        self.denied |= status in DENIED_STATUSES
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        content = content if isinstance(content, dict) else None
        if status == 503:
            raise EngineGone(f"{self.address.place} has no model ready: {error_of(content or {}, status)}")
        return status, content


def items(content: Json | None, name: str) -> list[Json]:
    """Return the objects in a list of a response; [] if it is not a list."""
    found = (content or {}).get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


async def find_server(address: Address, model: str) -> CompletionSource:
    """Return the server at an address with the requested model, or the first that can infill.

    The error is one line: the server is unreachable, has no model, requires a key, or cannot infill.
    """
    probe = ServerProbe(address)
    try:
        async with asyncio.timeout(DETECTION_SECONDS):
            if pair := str((await probe.get("/ps?role=completion") or {}).get("pair") or ""):
                return DaemonSource(address, pair)
            for kind in (_llama, _ollama, _openai):
                if server := await kind(probe, model):
                    return InfillSource(server)
    except TimeoutError:
        raise EngineGone(f"{address.place} does not answer") from None
    finally:
        probe.close()
    if probe.denied:
        raise probe.no_key()
    raise LocaldflashError(f"{address.place}: no server of completions that is known: see [server] url in the settings")


async def _llama(probe: ServerProbe, _model: str) -> InfillServer | None:
    """Detect llama-server, which has one model."""
    props = await probe.get("/props")
    settings = (props or {}).get("default_generation_settings")
    if props is None or not isinstance(settings, dict):
        return None
    context = settings.get("n_ctx")
    context = context if isinstance(context, int) else 0
    name = model_of(props)
    ids = await _marker_ids(probe)
    try:
        form = detect(PieceVocabulary(ids, name))
    except ModelError:
        form = None
    if form and not await _adds_blanks(probe):
        return RawLlama(probe.address, name, PromptBuilder(form, ids, context), ids)
    empty = {"input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": [], "n_predict": 0}
    if await probe.post_with_key("/infill", empty) is None:
        raise _cannot(probe, name)
    return InfillLlama(probe.address, name, context)


async def _marker_ids(probe: ServerProbe) -> dict[str, int]:
    """Return the markers of any format that are one token of the server's vocabulary."""
    ids = {}
    for marker in sorted({one for form in FORMATS.values() for one in _markers(form)}):
        body = {"content": marker, "add_special": False, "parse_special": True}
        match (await probe.post("/tokenize", body) or {}).get("tokens"):
            case [int(token)]:
                ids[marker] = token
    return ids


def _markers(form: FimFormat) -> list[str]:
    telltale = [form.telltale] if form.telltale else []
    return [*form.markers, *form.stops, *(form.files or ()), *telltale]


async def _adds_blanks(probe: ServerProbe) -> bool:
    """Return whether the vocabulary puts a blank before every text, so that a prompt cannot be sent in parts."""
    answer = await probe.post("/tokenize", {"content": "x", "add_special": False, "with_pieces": True})
    return "".join(str(one.get("piece")) for one in items(answer, "tokens")) not in ("x", "")


async def _ollama(probe: ServerProbe, model: str) -> InfillServer | None:
    """Detect Ollama: the requested model, else one in memory, else the first that can infill."""
    version, tags = await probe.get("/api/version"), await probe.get("/api/tags")
    if "version" not in (version or {}) or "models" not in (tags or {}):
        return None
    loaded = [_name(one) for one in items(await probe.get("/api/ps"), "models")]
    known = [model] if model else list(dict.fromkeys([*loaded, *(_name(one) for one in items(tags, "models"))]))
    if not known:
        raise ModelError(
            f"{probe.address.place} has no model: run `ollama pull` there with one that fills in the middle"
        )
    for name in known:
        shown = await probe.post("/api/show", {"model": name})
        if shown is None and model:
            raise ModelError(f"{probe.address.place} has no model {model}: run `ollama pull {model}` there")
        if how := await _how_for_ollama(probe, name, shown or {}):
            return Ollama(probe.address, name, how)
    raise _cannot(probe, *known)


async def _how_for_ollama(probe: ServerProbe, name: str, shown: Json) -> PromptBuilder | PrefixSuffixBuilder | None:
    """Return how to prompt a model: by the markers in its template, by those of its family, or by the template
    itself.
    """
    details = shown.get("details")
    names = name, str((details if isinstance(details, dict) else {}).get("family", ""))
    if form := families.of_template(str(shown.get("template", "")), *names):
        return PromptBuilder(form, form.files or ())
    if "insert" in (shown.get("capabilities") or ()):
        return PrefixSuffixBuilder()
    form = families.of_name(name)
    if form is None:
        return None
    body = {"model": name, "raw": True, "stream": False, "prompt": "".join(form.markers), "options": {"num_predict": 1}}
    counted = (await probe.post_with_key("/api/generate", body) or {}).get("prompt_eval_count")
    return PromptBuilder(form, form.files or ()) if _are_tokens(form, counted) else None


async def _openai(probe: ServerProbe, model: str) -> InfillServer | None:
    """Detect a server of OpenAI's completions: the requested model, or the first that can infill."""
    listed = await probe.get("/v1/models")
    if listed is None and not model:
        return None
    known = [model] if model else [str(one.get("id", "")) for one in items(listed, "data")][:MAX_MODELS]
    if not known:
        raise ModelError(f"{probe.address.place} has no model loaded")
    for name in known:
        if server := await _openai_model(probe, name):
            return server
    raise _cannot(probe, *known)


async def _openai_model(probe: ServerProbe, name: str) -> InfillServer | None:
    """Return a model with our prompt if the markers of its family are tokens, else with `suffix` if that counts."""
    form = families.of_name(name)
    if form:
        answer = await _one_token(probe, name, {"prompt": "".join(form.markers)})
        if answer and _are_tokens(form, _prompt_tokens(answer)):
            return OpenAi(probe.address, name, PromptBuilder(form, form.files or ()), logprobs=_tells_logprobs(answer))
    answer = await _one_token(probe, name, {"prompt": BEFORE, "suffix": AFTER})
    without = await _one_token(probe, name, {"prompt": BEFORE}) if answer else None
    if answer is None or without is None:
        return None
    counts = _prompt_tokens(answer), _prompt_tokens(without)
    if None not in counts and counts[0] - counts[1] < MIN_SUFFIX_TOKENS:
        return None  # the suffix is ignored
    return OpenAi(probe.address, name, PrefixSuffixBuilder(), logprobs=_tells_logprobs(answer))


async def _one_token(probe: ServerProbe, name: str, prompt: Json) -> Json | None:
    """Return the response to a request for one token, with its probability if the server reports it."""
    body = {"model": name, "max_tokens": 1, "temperature": 0.0, **prompt}
    return await probe.post_with_key("/v1/completions", {**body, "logprobs": 1}) or await probe.post_with_key(
        "/v1/completions", body
    )


def _prompt_tokens(answer: Json) -> Any:
    usage = answer.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def _tells_logprobs(answer: Json) -> bool:
    told = (items(answer, "choices") or [{}])[0].get("logprobs")
    return isinstance(told, dict) and bool(told.get("token_logprobs"))


def _are_tokens(form: FimFormat, counted: Any) -> bool:
    """Return whether a prompt of the markers alone has one token for each, and at most one BOS token."""
    return not isinstance(counted, int) or counted <= len(form.markers) + 1


def _name(one: Json) -> str:
    return str(one.get("name") or one.get("model") or "")


def _cannot(probe: ServerProbe, *models: str) -> ModelError:
    told = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
    return ModelError(
        f"{told} at {probe.address.place} does not fill in the middle: run a code model there that was trained for it,"
        " or take [server] url out of the settings"
    )
