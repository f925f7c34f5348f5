"""Client of the remote server that the settings name; it detects which model can infill, and in which format."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from localdflash.base.errors import EngineDisconnect, LocaldflashError, ModelError, UsageError
from localdflash.lsp.engine_completer import RETRY_SECONDS, CompletionClient, CompletionSource, DaemonSource
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.lsp.remote.remote_prompt import RemotePrompt
from localdflash.lsp.remote.remote_source import COMPLETIONS, LOGPROBS, MODELS, RemoteSource, model_ids, objects
from localdflash.models.config import is_loopback
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.server.refusals import error_of_response, json_object
from localdflash.text.fim_formats import FORMATS, FimFormat, is_next_edit_model

Json = dict[str, Any]
DENIED_STATUSES = (401, 403)
DETECTION_SECONDS = 60.0  # Ollama may load a model first
MAX_MODELS = 8  # models tried if none is requested
PROBE_PREFIX, PROBE_SUFFIX = "def add(a, b):\n    return ", "\n\n\n" + "print(add(1, 2))\n" * 4
MIN_SUFFIX_TOKENS = 12  # fewest tokens that PROBE_SUFFIX adds if the server uses it
# Part of a model's name -> name of its format; the first part that is in the name counts.
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

    def __init__(self, server: RemoteServer, log: Callable[[str], None], on_trouble: Callable[[str], None]) -> None:
        super().__init__(log, on_trouble)
        self._server = server
        self.disconnect_message = f"{server.url} disconnected mid-answer"
        self.model_suffix = f" at {urlsplit(server.url).netloc}"

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        address = self._server.address()
        source = await find_server(address, self._server.model)
        sent = "" if is_loopback(address.host) else ": the code around the cursor is sent there"
        self._log(f"suggestions come from {source.model} at {address.display_name}{sent}")
        return source


async def find_server(address: Address, model: str) -> CompletionSource:
    """Return the server at an address with the requested model, or the first that can infill."""
    probe = ServerProbe(address)
    try:
        async with asyncio.timeout(DETECTION_SECONDS):
            if pair := str((await probe.request("/ps?role=completion")).get("pair") or ""):
                return DaemonSource(address, pair)
            return await _find_model(probe, model)
    except TimeoutError:
        raise EngineDisconnect(f"{address.display_name} does not answer") from None
    finally:
        probe.close()


class ServerProbe:
    """Connection for detection."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection = ClientConnection(address, bytes, tolerant=True)

    async def request(self, target: str, body: Mapping[str, object] | None = None) -> Json:
        """Return the JSON object of a GET, or of a POST if there is a body; {} for an error or another response.

        EngineDisconnect while the server loads its model. UsageError if a /v1/ path requires another key.
        """
        status, data = await self._connection.request("GET" if body is None else "POST", target, body)
        if status in DENIED_STATUSES and target.startswith("/v1/"):
            raise self._key_error()
        if status == 503:
            raise EngineDisconnect(f"{self.address.display_name} has no model ready: {error_of_response(data, status)}")
        with suppress(LocaldflashError):
            return json_object(data) if status == 200 else {}
        return {}

    async def request_token(self, model: str, prompt: str, suffix: str = "") -> "ProbeAnswer | None":
        """Request one token, with its probability if the server accepts that option; None if the request is refused."""
        body = {"model": model, "max_tokens": 1, "temperature": 0.0, "prompt": prompt}
        body |= {"suffix": suffix} if suffix else {}
        answer = await self.request(COMPLETIONS, {**body, **LOGPROBS}) or await self.request(COMPLETIONS, body)
        return ProbeAnswer(answer) if answer else None

    def _key_error(self) -> UsageError:
        """Return the error about the missing or wrong key."""
        if self.address.key:
            return UsageError(f"{self.address.display_name} refused the key in the file that server.key_file names")
        return UsageError(
            f"{self.address.display_name} needs a key; put it into a file, and its path into server.key_file"
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ProbeAnswer:
    """Answer to a request for one token. `prompt_tokens` is None if the server does not count them."""

    def __init__(self, answer: Json) -> None:
        usage, (choice, *_) = answer.get("usage"), objects(answer, "choices") or [{}]
        logprobs = choice.get("logprobs")
        counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        self.prompt_tokens = counted if isinstance(counted, int) else None
        self.has_logprobs = isinstance(logprobs, dict) and any(logprobs.values())


async def _find_model(probe: ServerProbe, model: str) -> RemoteSource:
    """Return the requested model, or the first that can infill; names that say "code" come first."""
    listed = await probe.request(MODELS)
    server_name, ids = probe.address.display_name, model_ids(listed)
    if not listed and not model:
        raise LocaldflashError(f"{server_name}: no completion server found; see [server] url in the settings")
    tried = [model] if model else sorted(ids, key=lambda one: "code" not in one.lower())[:MAX_MODELS]
    if not tried:
        raise ModelError(f"{server_name} has no model: load one there that was trained to fill in the middle")
    contexts = {str(one.get("id")): _context_tokens(one) for one in objects(listed, "data")}
    for name in tried:
        if not is_next_edit_model(name) and (detected := await _detect_infill(probe, name, is_only=len(tried) == 1)):
            form, logprobs = detected
            return RemoteSource(probe.address, name, ids, RemotePrompt(form, contexts.get(name, 0)), logprobs=logprobs)
    if model and ids and model not in ids:
        raise ModelError(f"{server_name} cannot use the model {model}; it has {_listing(ids)}")
    raise ModelError(
        f"{_listing(tried)} at {server_name} does not fill in the middle: run a code model there that was trained for"
        " it, or take [server] url out of the settings"
    )


async def _detect_infill(probe: ServerProbe, name: str, *, is_only: bool) -> tuple[FimFormat | None, bool] | None:
    """Return the format of a model (None: `suffix`) and whether probabilities are reported; None if it cannot infill.

    The markers of the family in the name are tried first, then `suffix`. If the model is the only one to try, the
    markers of all families are tried last.
    """
    if form := _format_of_name(name):
        answer = await probe.request_token(name, "".join(form.markers))
        if answer and (answer.prompt_tokens is None or _are_tokens(form.markers, answer.prompt_tokens)):
            return form, answer.has_logprobs
    answer = await probe.request_token(name, PROBE_PREFIX, PROBE_SUFFIX)
    if answer and (without := await probe.request_token(name, PROBE_PREFIX)):
        with_suffix, alone = answer.prompt_tokens, without.prompt_tokens
        if with_suffix is None or alone is None or with_suffix - alone >= MIN_SUFFIX_TOKENS:
            return None, answer.has_logprobs
    for form in FORMATS.values() if is_only else ():
        if form.markers and not form.model_name:  # formats that any model may have, as in `detect`
            tokens = [*form.markers, *([form.family_token] if form.family_token else [])]
            answer = await probe.request_token(name, "".join(tokens))
            if answer and answer.prompt_tokens is not None and _are_tokens(tokens, answer.prompt_tokens):
                return replace(form, file_tokens=None), answer.has_logprobs
    return None


def _format_of_name(name: str) -> FimFormat | None:
    """Return the format of the first known word in a model's name."""
    return next((FORMATS[form] for word, form in _FORMATS_BY_NAME.items() if word in name.lower()), None)


def _are_tokens(spellings: Sequence[str], prompt_tokens: int) -> bool:
    """Return whether a prompt of these spellings has one token for each, and at most one BOS token."""
    return prompt_tokens <= len(spellings) + 1


def _context_tokens(model: Json) -> int:
    """Return the context of a listed model in vLLM's or llama-server's field; 0 if it is not reported."""
    meta = model.get("meta")
    context = model.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return context if isinstance(context, int) else 0


def _listing(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
