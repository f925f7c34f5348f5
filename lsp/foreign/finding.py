"""Find out what a server can do: which kind it is, which of its models fills in the middle, and by what prompt.

Nothing of this is configured, and no kind is told by its name: each is asked for what only it has, then for what a
completion needs. A prompt of ours comes first, wherever the server takes one as it is.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from localdflash.base.errors import EngineGone, LocaldflashError, ModelError, UsageError
from localdflash.lsp.engine_completer import Daemon, Source
from localdflash.lsp.foreign import families
from localdflash.lsp.foreign.llama_server import InfillLlama, RawLlama, model_of
from localdflash.lsp.foreign.ollama_server import Ollama
from localdflash.lsp.foreign.openai_server import OpenAi
from localdflash.lsp.foreign.pieces import FillServer, FillSource
from localdflash.lsp.foreign.remote_prompt import Pieces, Prompts, Sides
from localdflash.server.address import Address
from localdflash.server.client import Connection
from localdflash.server.refusals import error_of
from localdflash.text.fim import FORMATS, FimFormat, detect

Json = dict[str, Any]
DENIED = (401, 403)
LONGEST = 60.0  # seconds: Ollama may load a model first
MOST_MODELS = 8  # that are tried, where none is asked for
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\n\n" + "print(add(1, 2))\n" * 4
COUNTED = 12  # tokens that AFTER adds to a prompt at least, where it is not ignored


class Probe:
    """One connection for such questions. `denied`: an answer was that a key is wanted."""

    def __init__(self, address: Address) -> None:
        self.address, self.denied = address, False
        self._connection = Connection(address, bytes, tolerant=True)

    async def get(self, target: str) -> Json | None:
        """The JSON object there; None if there is none. EngineGone while the server loads its model."""
        status, content = await self._ask("GET", target)
        return content if status == 200 else None

    async def post(self, target: str, body: Mapping[str, object]) -> Json | None:
        """The same for a POST."""
        status, content = await self._ask("POST", target, body)
        return content if status == 200 else None

    async def post_with_key(self, target: str, body: Mapping[str, object]) -> Json | None:
        """The same, where no other kind of server can be meant: UsageError if a key is wanted."""
        status, content = await self._ask("POST", target, body)
        if status in DENIED:
            raise self.no_key()
        return content if status == 200 else None

    def no_key(self) -> UsageError:
        """The error that says what to do about the key."""
        if self.address.key:
            return UsageError(f"{self.address.place} refuses the key that [server] key_file names")
        return UsageError(f"{self.address.place} wants a key: put it into a file, and its path into [server] key_file")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _ask(self, method: str, target: str, body: Mapping[str, object] | None = None) -> tuple[int, Json | None]:
        status, data = await self._connection.answer(method, target, body)
        self.denied |= status in DENIED
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        content = content if isinstance(content, dict) else None
        if status == 503:
            raise EngineGone(f"{self.address.place} has no model ready: {error_of(content or {}, status)}")
        return status, content


def items(content: Json | None, name: str) -> list[Json]:
    """The objects in a list of an answer; none if it is not one."""
    found = (content or {}).get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


async def find(address: Address, model: str) -> Source:
    """What answers at an address, with the model that is asked for, or the first that can.

    An error says in one line why nothing does: it cannot be reached, has no model, wants a key, or does not fill in.
    """
    probe = Probe(address)
    try:
        async with asyncio.timeout(LONGEST):
            if pair := str((await probe.get("/ps?role=completion") or {}).get("pair") or ""):
                return Daemon(address, pair)
            for kind in (_llama, _ollama, _openai):
                if server := await kind(probe, model):
                    return FillSource(server)
    except TimeoutError:
        raise EngineGone(f"{address.place} does not answer") from None
    finally:
        probe.close()
    if probe.denied:
        raise probe.no_key()
    raise LocaldflashError(f"{address.place}: no server of completions that is known: see [server] url in the settings")


async def _llama(probe: Probe, _model: str) -> FillServer | None:
    """llama-server, which has one model."""
    props = await probe.get("/props")
    settings = (props or {}).get("default_generation_settings")
    if props is None or not isinstance(settings, dict):
        return None
    context = settings.get("n_ctx")
    context = context if isinstance(context, int) else 0
    name = model_of(props)
    ids = await _marker_ids(probe)
    try:
        form = detect(Pieces(ids, name))
    except ModelError:
        form = None
    if form and not await _adds_blanks(probe):
        return RawLlama(probe.address, name, Prompts(form, ids, context), ids)
    empty = {"input_prefix": BEFORE, "input_suffix": AFTER, "input_extra": [], "n_predict": 0}
    if await probe.post_with_key("/infill", empty) is None:
        raise _cannot(probe, name)
    return InfillLlama(probe.address, name, context)


async def _marker_ids(probe: Probe) -> dict[str, int]:
    """The markers of any format that are one token of the server's vocabulary."""
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


async def _adds_blanks(probe: Probe) -> bool:
    """Whether the vocabulary puts a blank before every text: then a prompt cannot be sent in parts."""
    answer = await probe.post("/tokenize", {"content": "x", "add_special": False, "with_pieces": True})
    return "".join(str(one.get("piece")) for one in items(answer, "tokens")) not in ("x", "")


async def _ollama(probe: Probe, model: str) -> FillServer | None:
    """Ollama: the model that is asked for, or one that is in memory, or the first that can."""
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


async def _how_for_ollama(probe: Probe, name: str, shown: Json) -> Prompts | Sides | None:
    """How to prompt a model: by the markers in its template, by those of its family, or by the template itself."""
    details = shown.get("details")
    names = name, str((details if isinstance(details, dict) else {}).get("family", ""))
    if form := families.of_template(str(shown.get("template", "")), *names):
        return Prompts(form, form.files or ())
    if "insert" in (shown.get("capabilities") or ()):
        return Sides()
    form = families.of_name(name)
    if form is None:
        return None
    body = {"model": name, "raw": True, "stream": False, "prompt": "".join(form.markers), "options": {"num_predict": 1}}
    counted = (await probe.post_with_key("/api/generate", body) or {}).get("prompt_eval_count")
    return Prompts(form, form.files or ()) if _are_tokens(form, counted) else None


async def _openai(probe: Probe, model: str) -> FillServer | None:
    """Any server of OpenAI's completions: the model that is asked for, or the first that can."""
    listed = await probe.get("/v1/models")
    if listed is None and not model:
        return None
    known = [model] if model else [str(one.get("id", "")) for one in items(listed, "data")][:MOST_MODELS]
    if not known:
        raise ModelError(f"{probe.address.place} has no model loaded")
    for name in known:
        if server := await _openai_model(probe, name):
            return server
    raise _cannot(probe, *known)


async def _openai_model(probe: Probe, name: str) -> FillServer | None:
    """A model by a prompt of ours, if its vocabulary has the markers of its family, else by `suffix`, if it counts."""
    form = families.of_name(name)
    if form:
        answer = await _one_token(probe, name, {"prompt": "".join(form.markers)})
        if answer and _are_tokens(form, _prompt_tokens(answer)):
            return OpenAi(probe.address, name, Prompts(form, form.files or ()), logprobs=_tells_logprobs(answer))
    answer = await _one_token(probe, name, {"prompt": BEFORE, "suffix": AFTER})
    without = await _one_token(probe, name, {"prompt": BEFORE}) if answer else None
    if answer is None or without is None:
        return None
    counts = _prompt_tokens(answer), _prompt_tokens(without)
    if None not in counts and counts[0] - counts[1] < COUNTED:
        return None  # the suffix is ignored
    return OpenAi(probe.address, name, Sides(), logprobs=_tells_logprobs(answer))


async def _one_token(probe: Probe, name: str, prompt: Json) -> Json | None:
    """The answer to a request for one token, with its probability if the server tells it."""
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
    """Whether a prompt of the markers alone has one token for each, and perhaps one that begins every text."""
    return not isinstance(counted, int) or counted <= len(form.markers) + 1


def _name(one: Json) -> str:
    return str(one.get("name") or one.get("model") or "")


def _cannot(probe: Probe, *models: str) -> ModelError:
    told = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
    return ModelError(
        f"{told} at {probe.address.place} does not fill in the middle: run a code model there that was trained for it,"
        " or take [server] url out of the settings"
    )
