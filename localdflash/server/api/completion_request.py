"""Completion requests: a prompt to continue, or a gap, also where the client wrote the FIM markers, as Zed does."""

from collections.abc import Sequence
from contextlib import suppress

from localdflash.base.errors import ModelError, UsageError
from localdflash.code.fim.infill_plan import InfillPlan
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import TEMPERATURE
from localdflash.server.api.generation import COUNTED_CONTEXTS, GenerationRequest, params_of
from localdflash.server.api.http_responses import bad
from localdflash.server.api.schemas import SamplingFields
from localdflash.text.chat_template import encode_parts
from localdflash.text.fim_formats import build, split, stop_ids

PromptField = str | Sequence[int]
MIDDLE_TEMPERATURE = 0.0  # what an editor inserts is what is likeliest


def prepare_prompt(
    loaded: LoadedPair, prompt: PromptField, suffix: str | None, limit: int, body: SamplingFields
) -> GenerationRequest:
    """Return the request that continues a prompt, or fills the middle before `suffix`."""
    around = None
    if suffix is not None:
        if not isinstance(prompt, str):
            raise bad("suffix", "needs a prompt that is text")
        around = prompt, suffix
    elif isinstance(prompt, str):
        with suppress(ModelError):  # a model that cannot fill in
            loaded.fim_format()
            around = split(prompt)
    if around is None:
        return prepare_text(loaded, prompt, limit, params_of(body, TEMPERATURE))
    return prepare_middle(loaded, *around, limit, params_of(body, MIDDLE_TEMPERATURE))


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[PromptField]:
    """Return the prompts of a request, each as text or ids."""
    if isinstance(prompt, str):
        return [prompt]
    if len(ids := [part for part in prompt if isinstance(part, int)]) == len(prompt):
        return [ids]
    prompts = [part for part in prompt if not isinstance(part, int)]
    if len(prompts) < len(prompt) or len(set(map(type, prompts))) > 1:
        raise bad("prompt", "expected text, token ids, or a list of one of them")
    return [*prompts]


def prepare_middle(
    loaded: LoadedPair, prefix: str, suffix: str, max_tokens: int, params: SamplingParams
) -> GenerationRequest:
    """Return the request of the text between prefix and suffix, whose lines end as in training: with a line feed."""
    form, tokenizer = loaded.fim_format(), loaded.tokenizer
    enough = COUNTED_CONTEXTS * loaded.context
    ids = build(form, tokenizer, prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n"), enough)
    return GenerationRequest(
        loaded, [Request(ids, max_tokens, params, stop_ids(form, tokenizer))], form.stop_strings, urgent=True
    )


def prepare_text(loaded: LoadedPair, prompt: PromptField, max_tokens: int, params: SamplingParams) -> GenerationRequest:
    """Return the request that continues a prompt, in which text may spell markers; UsageError for an invalid prompt."""
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        ids = encode_parts(tokenizer, tokenizer.split_markers(prompt), enough=COUNTED_CONTEXTS * loaded.context)
        bos = tokenizer.bos()
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
    else:
        ids = list(prompt)
        if strange := [token for token in ids if not 0 <= token < tokenizer.vocab_size]:
            raise UsageError(f"prompt: {strange[0]} is no token of this model, which has {tokenizer.vocab_size}")
    if not ids:
        raise UsageError("prompt: it is empty, there is nothing to go on from")
    return GenerationRequest(loaded, [Request(ids, max_tokens, params, tokenizer.ends)], urgent=True)


def prepare_infill(loaded: LoadedPair, plan: InfillPlan) -> GenerationRequest:
    """Return the requests of a plan."""
    return GenerationRequest(loaded, plan.requests, plan.stops, plan.prompt.truncated, urgent=True, ending=plan.ending)
