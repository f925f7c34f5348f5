"""Turn completion requests into generations: continue a prompt, or infill a gap. Zed writes FIM markers itself."""

from collections.abc import Sequence
from contextlib import suppress

from localdflash.base.errors import ModelError, UsageError
from localdflash.code.fim.infill_plan import InfillPlan
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import DEFAULT_TEMPERATURE
from localdflash.server.api.generation import COUNTED_CONTEXTS, GenerationRequest, params_of
from localdflash.server.api.http_responses import bad
from localdflash.server.api.schemas import SamplingFields
from localdflash.text.chat_template import encode_parts
from localdflash.text.fim_formats import build, split, stop_ids

PromptField = str | Sequence[int]
INFILL_TEMPERATURE = 0.0  # default for infilling: greedy


def prepare_prompt(
    loaded: LoadedPair, prompt: PromptField, suffix: str | None, limit: int, body: SamplingFields
) -> GenerationRequest:
    """Prepare the continuation of a prompt. With `suffix`, or with FIM markers in the prompt, prepare an infill."""
    sides = None  # text before and after the gap
    if suffix is not None:
        if not isinstance(prompt, str):
            raise bad("suffix", "requires a prompt that is text")
        sides = prompt, suffix
    elif isinstance(prompt, str):
        with suppress(ModelError):  # the model was not trained for infilling
            loaded.fim_format()
            sides = split(prompt)
    if sides is None:
        return prepare_text(loaded, prompt, limit, params_of(body, DEFAULT_TEMPERATURE))
    return prepare_middle(loaded, *sides, limit, params_of(body, INFILL_TEMPERATURE))


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[PromptField]:
    """Return the prompts of a request, each as text or token ids; ApiError for a mixed list."""
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
    """Prepare an infill; ModelError if the model was not trained for it. CRLF becomes LF, as in training."""
    form, tokenizer = loaded.fim_format(), loaded.tokenizer
    enough = COUNTED_CONTEXTS * loaded.context
    ids = build(form, tokenizer, prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n"), enough)
    return GenerationRequest(
        loaded, [Request(ids, max_tokens, params, stop_ids(form, tokenizer))], stops=form.stop_strings, urgent=True
    )


def prepare_text(loaded: LoadedPair, prompt: PromptField, max_tokens: int, params: SamplingParams) -> GenerationRequest:
    """Prepare the continuation of a prompt; its text may contain special tokens. UsageError if it is invalid."""
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        ids = encode_parts(tokenizer, tokenizer.split_markers(prompt), enough=COUNTED_CONTEXTS * loaded.context)
        bos = tokenizer.bos()
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
    else:
        ids = list(prompt)
        if invalid := [token for token in ids if not 0 <= token < tokenizer.vocab_size]:
            raise UsageError(f"prompt: invalid token id {invalid[0]} (expected 0 to {tokenizer.vocab_size - 1})")
    if not ids:
        raise UsageError("prompt: empty (expected at least one token)")
    return GenerationRequest(loaded, [Request(ids, max_tokens, params, tokenizer.ends)], urgent=True)


def prepare_infill(loaded: LoadedPair, plan: InfillPlan) -> GenerationRequest:
    """Convert an infill plan to a generation."""
    return GenerationRequest(
        loaded,
        plan.requests,
        plan.stops,
        truncated=plan.prompt.truncated,
        urgent=True,
        ending=plan.ending,
        best=plan.best,
    )
