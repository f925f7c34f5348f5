"""Detect the kind of a server by an endpoint that only its kind has, and which of its models can infill, and how."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from localdflash.base.errors import EngineDisconnect, LocaldflashError, ModelError, UsageError
from localdflash.lsp.engine_completer import RETRY_SECONDS, CompletionClient, CompletionSource, DaemonSource
from localdflash.lsp.foreign.completion_clients import OllamaClient, OpenAiClient
from localdflash.lsp.foreign.llama_client import InfillLlama, RawLlama, model_of
from localdflash.lsp.foreign.pieces import InfillServer
from localdflash.lsp.foreign.remote_prompt import PieceVocabulary, PrefixSuffixBuilder, PromptBuilder
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.models.config import is_loopback
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.server.refusals import error_of
from localdflash.text.fim_formats import FORMATS, FimFormat, detect, is_next_edit_model

Json = dict[str, Any]
DENIED_STATUSES = (401, 403)
DETECTION_SECONDS = 60.0  # seconds: Ollama may load a model first
MAX_MODELS = 8  # that are tried if none is requested
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\n\n" + "print(add(1, 2))\n" * 4
MIN_SUFFIX_TOKENS = 12  # tokens that AFTER adds to a prompt at least, where it is not ignored
# A word of a model's name, and its format; the first that is in the name counts.
_FORMATS_BY_NAME = {
    "codegemma": "codegemma",
    "granite4": "granite4",
    "granite-4": "granite4",
    "granite": "granite",
    "qwen": "qwen",
    "mellum": "mellum",
    "starcoder2": "starcoder2",
    "starcoder": "starcoder",
    "deepseek": "deepseek",
    "codestral": "codestral",
    "seed-coder": "seed",
    "glm": "glm",
}


class RemoteCompleter(CompletionClient):
    """Client of a remote server. Text leaves this machine only for the address in the user's own settings."""

    error_retry_seconds = RETRY_SECONDS  # the next request detects the server's features again

    def __init__(self, engine: RemoteServer, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        super().__init__(log, on_trouble)
        self._engine = engine
        self.disconnect_message = f"{engine.url} disconnected mid-answer"

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        address = self._engine.address()
        source = await find_server(address, self._engine.model)
        sent = "" if is_loopback(address.host) else ": the code around the cursor is sent there"
        self._log(f"suggestions come from {source.model} at {address.place}{sent}")
        return source

    async def model(self) -> str:
        """See `CompletionClient`: with the server's address."""
        source = await self._connected()
        return f"{source.model} at {urlsplit(self._engine.url).netloc}" if source else ""


class ServerProbe:
    """Connection for detection. `denied`: a response required a key."""

    def __init__(self, address: Address) -> None:
        self.address, self.denied = address, False
        self._connection = ClientConnection(address, bytes, tolerant=True)

    async def request(self, target: str, body: Mapping[str, object] | None = None, *, key: bool = False) -> Json | None:
        """Return the JSON object of a GET, or of a POST with a body; None if there is none.

        EngineDisconnect while the server loads its model. UsageError if the request requires a key and `key` is set.
        """
        status, data = await self._connection.answer("GET" if body is None else "POST", target, body)
        self.denied |= status in DENIED_STATUSES
        if key and status in DENIED_STATUSES:
            raise self.no_key()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        content = content if isinstance(content, dict) else None
        if status == 503:
            raise EngineDisconnect(f"{self.address.place} has no model ready: {error_of(content or {}, status)}")
        return content if status == 200 else None

    def no_key(self) -> UsageError:
        """Return the error about the missing or wrong key."""
        if self.address.key:
            return UsageError(f"{self.address.place} refuses the key that [server] key_file names")
        return UsageError(f"{self.address.place} wants a key: put it into a file, and its path into [server] key_file")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def items(content: Json | None, name: str) -> list[Json]:
    """Return the objects in a list of a response; [] if it is not a list."""
    found = (content or {}).get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


async def find_server(address: Address, model: str) -> CompletionSource:
    """Return the server at an address with the requested model, or the first that can infill."""
    probe = ServerProbe(address)
    try:
        async with asyncio.timeout(DETECTION_SECONDS):
            if pair := str((await probe.request("/ps?role=completion") or {}).get("pair") or ""):
                return DaemonSource(address, pair)
            for kind in (_llama, _ollama, _openai):
                if server := await kind(probe, model):
                    return server
    except TimeoutError:
        raise EngineDisconnect(f"{address.place} does not answer") from None
    finally:
        probe.close()
    if probe.denied:
        raise probe.no_key()
    raise LocaldflashError(f"{address.place}: no server of completions that is known: see [server] url in the settings")


async def _llama(probe: ServerProbe, _model: str) -> InfillServer | None:
    """Detect llama-server, which has one model."""
    props = await probe.request("/props")
    settings = (props or {}).get("default_generation_settings")
    if props is None or not isinstance(settings, dict):
        return None
    context = settings.get("n_ctx")
    context = context if isinstance(context, int) else 0
    name = model_of(props)
    if is_next_edit_model(name):
        raise _cannot(probe, name)
    ids = await _marker_ids(probe)
    try:
        form = detect(PieceVocabulary(ids, name))
    except ModelError:
        form = None
    if form and not await _adds_blanks(probe):
        return RawLlama(probe.address, name, PromptBuilder(form, ids, context), ids)
    empty = {"input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": [], "n_predict": 0}
    if await probe.request("/infill", empty, key=True) is None:
        raise _cannot(probe, name)
    return InfillLlama(probe.address, name, context)


async def _marker_ids(probe: ServerProbe) -> dict[str, int]:
    """Return the markers of any format that are one token of the server's vocabulary."""
    ids = {}
    forms = FORMATS.values()
    telltales = {form.telltale for form in forms if form.telltale}
    for marker in sorted(
        {*telltales, *(one for form in forms for one in (*form.markers, *form.stops, *(form.files or ())))}
    ):
        body = {"content": marker, "add_special": False, "parse_special": True}
        match (await probe.request("/tokenize", body) or {}).get("tokens"):
            case [int(token)]:
                ids[marker] = token
    return ids


async def _adds_blanks(probe: ServerProbe) -> bool:
    """Return whether the vocabulary puts a blank before every text, so that a prompt cannot be sent in parts."""
    answer = await probe.request("/tokenize", {"content": "x", "add_special": False, "with_pieces": True})
    return "".join(str(one.get("piece")) for one in items(answer, "tokens")) not in ("x", "")


async def _ollama(probe: ServerProbe, model: str) -> InfillServer | None:
    """Detect Ollama: the requested model, else one in memory, else the first that can infill."""
    version, tags = await probe.request("/api/version"), await probe.request("/api/tags")
    if "version" not in (version or {}) or "models" not in (tags or {}):
        return None
    loaded = [_name(one) for one in items(await probe.request("/api/ps"), "models")]
    known = [model] if model else list(dict.fromkeys([*loaded, *(_name(one) for one in items(tags, "models"))]))
    if not known:
        raise ModelError(
            f"{probe.address.place} has no model: run `ollama pull` there with one that fills in the middle"
        )
    for name in known:
        if is_next_edit_model(name):
            continue
        shown = await probe.request("/api/show", {"model": name})
        if shown is None and model:
            raise ModelError(f"{probe.address.place} has no model {model}: run `ollama pull {model}` there")
        if prompt_builder := await _how_for_ollama(probe, name, shown or {}):
            return OllamaClient(probe.address, name, prompt_builder)
    raise _cannot(probe, *known)


async def _how_for_ollama(probe: ServerProbe, name: str, shown: Json) -> PromptBuilder | PrefixSuffixBuilder | None:
    """Return how to prompt a model: by the markers in its template, by those of its family, or by its template."""
    details = shown.get("details")
    names = name, str((details if isinstance(details, dict) else {}).get("family", ""))
    if form := _format_of_template(str(shown.get("template", "")), *names):
        return PromptBuilder(form, form.files or ())
    if "insert" in (shown.get("capabilities") or ()):
        return PrefixSuffixBuilder()
    form = _format_of_name(name)
    if form is None:
        return None
    body = {"model": name, "raw": True, "stream": False, "prompt": "".join(form.markers), "options": {"num_predict": 1}}
    counted = (await probe.request("/api/generate", body, key=True) or {}).get("prompt_eval_count")
    return PromptBuilder(form, form.files or ()) if _are_tokens(form, counted) else None


async def _openai(probe: ServerProbe, model: str) -> InfillServer | None:
    """Detect a server of OpenAI's completions: the requested model, or the first that can infill."""
    listed = await probe.request("/v1/models")
    if listed is None and not model:
        return None
    known = [model] if model else [str(one.get("id", "")) for one in items(listed, "data")][:MAX_MODELS]
    if not known:
        raise ModelError(f"{probe.address.place} has no model loaded")
    for name in known:
        if not is_next_edit_model(name) and (server := await _openai_model(probe, name)):
            return server
    raise _cannot(probe, *known)


async def _openai_model(probe: ServerProbe, name: str) -> InfillServer | None:
    """Return a model with our prompt if the markers of its family are tokens, else with `suffix` if that counts."""
    form = _format_of_name(name)
    if form:
        answer = await _one_token(probe, name, {"prompt": "".join(form.markers)})
        if answer and _are_tokens(form, _prompt_tokens(answer)):
            return OpenAiClient(
                probe.address, name, PromptBuilder(form, form.files or ()), logprobs=_tells_logprobs(answer)
            )
    answer = await _one_token(probe, name, {"prompt": BEFORE, "suffix": AFTER})
    without = await _one_token(probe, name, {"prompt": BEFORE}) if answer else None
    if answer is None or without is None:
        return None
    counts = _prompt_tokens(answer), _prompt_tokens(without)
    if None not in counts and counts[0] - counts[1] < MIN_SUFFIX_TOKENS:
        return None  # the suffix is ignored
    return OpenAiClient(probe.address, name, PrefixSuffixBuilder(), logprobs=_tells_logprobs(answer))


async def _one_token(probe: ServerProbe, name: str, prompt: Json) -> Json | None:
    """Return the response to a request for one token, with its probability if the server reports it."""
    body = {"model": name, "max_tokens": 1, "temperature": 0.0, **prompt}
    return await probe.request("/v1/completions", {**body, "logprobs": 1}, key=True) or await probe.request(
        "/v1/completions", body, key=True
    )


def _prompt_tokens(answer: Json) -> Any:
    usage = answer.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def _tells_logprobs(answer: Json) -> bool:
    reported = (items(answer, "choices") or [{}])[0].get("logprobs")
    return isinstance(reported, dict) and bool(reported.get("token_logprobs"))


def _are_tokens(form: FimFormat, counted: Any) -> bool:
    """Return whether a prompt of the markers alone has one token for each, and at most one BOS token."""
    return not isinstance(counted, int) or counted <= len(form.markers) + 1


def _name(one: Json) -> str:
    return str(one.get("name") or one.get("model") or "")


def _cannot(probe: ServerProbe, *models: str) -> ModelError:
    names = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
    return ModelError(
        f"{names} at {probe.address.place} does not fill in the middle: run a code model there that was trained for it,"
        " or take [server] url out of the settings"
    )


def _format_of_name(*names: str) -> FimFormat | None:
    """Return the format of the first name that contains a known word."""
    for name in names:
        for word, form in _FORMATS_BY_NAME.items():
            if word in name.lower():
                return FORMATS[form]
    return None


def _format_of_template(template: str, *names: str) -> FimFormat | None:
    """Return the format whose markers a template contains; among families that share them, the one of a name."""
    spelled = [form for form in FORMATS.values() if form.markers and all(marker in template for marker in form.markers)]
    if not spelled:
        return None
    named = _format_of_name(*names)
    if named and any(form.markers == named.markers for form in spelled):
        return named
    return replace(spelled[0], order="psm", files=None)
