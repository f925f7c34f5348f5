"""POST /v1/completions: continue a prompt, or fill the middle if there is a suffix.

The middle is the model's own: not healed, and ended by `max_tokens` and `stop`, which such a client sets for what it
does with the text, as it may read the tokens' log probabilities. What an editor shows is `native` and `complete`.
A prompt that a client wrote with the markers of the model's own fill-in-the-middle format, as Zed does, is taken apart
and put together again in the order that the model was trained with.
"""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.base.errors import ModelError
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Prepared
from localdflash.server.answers.completion import prepare, prepare_text
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask, choices, constraint_of, limit_of, params_of
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.openai_answers import CompletionShape, answer
from localdflash.server.api.request_body import read
from localdflash.server.api.schemas import CompletionRequest, SamplingFields
from localdflash.text.fim import split
from localdflash.text.grammar import Grammars

PromptField = str | Sequence[int]
TOKENS = 16  # where a request does not say, as OpenAI documents
TEMPERATURE = 1.0  # likewise
MIDDLE_TEMPERATURE = 0.0  # what an editor inserts is what is likeliest
MOST_CHOICES = 16


async def completions(http: HttpRequest) -> Response:
    """Answer with what follows a prompt."""
    state: AppState = http.app.state.shared
    body = await read(http, CompletionRequest)
    role = state.engines.continuing if body.suffix is None else "completion"
    loaded = await state.ready(role, body.model)
    ask = await asyncio.to_thread(_ask, loaded, body, state.grammars(loaded))
    return await answer(http, state, ask, body, CompletionShape(loaded.tokenizer, body.logprobs is not None))


def _ask(loaded: LoadedPair, body: CompletionRequest, grammars: Grammars) -> Ask:
    prompts, count = prompts_of(body.prompt), body.n or 1
    if len(prompts) * count > MOST_CHOICES:
        raise ApiError(400, f"more than {MOST_CHOICES} choices of all prompts", param="n", code="invalid_value")
    limit = limit_of(body.max_tokens, body.n_predict, default=TOKENS)
    constraint = constraint_of(body, grammars)
    asked = [
        choices(
            loaded, prepare_prompt(loaded, prompt, body.suffix, limit, body), body, count, constraint, body.logprobs
        )
        for prompt in prompts
    ]
    requests = [request for of_prompt, _ in asked for request in of_prompt]
    return Ask(loaded, requests, asked[0][1], urgent=True, document=body.document)


def prepare_prompt(
    loaded: LoadedPair, prompt: PromptField, suffix: str | None, limit: int, body: SamplingFields
) -> Prepared:
    """The request that continues a prompt, or fills the middle before `suffix`."""
    around = _around(loaded, prompt, suffix)
    if around is None:
        return prepare_text(loaded, prompt, limit, params_of(body, TEMPERATURE))
    return prepare(loaded, *around, limit, params_of(body, MIDDLE_TEMPERATURE))


def _around(loaded: LoadedPair, prompt: PromptField, suffix: str | None) -> tuple[str, str] | None:
    """The text before and after the cursor; None for a prompt to continue."""
    if isinstance(prompt, str):
        if suffix is not None:
            return prompt, suffix
        try:
            return split(loaded.fim_format(), prompt)
        except ModelError:  # it has no such format
            return None
    if suffix is not None:
        raise ApiError(400, "suffix: needs a prompt that is text", param="suffix", code="invalid_value")
    return None


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[PromptField]:
    """The prompts of a request, each as text or ids."""
    if isinstance(prompt, str):
        return [prompt]
    texts = [part for part in prompt if isinstance(part, str)]
    ids = [part for part in prompt if isinstance(part, int)]
    lists = [part for part in prompt if isinstance(part, list)]
    if len(prompt) == len(ids):
        return [ids]
    if len(prompt) == len(texts):
        return [*texts]
    if len(prompt) == len(lists):
        return [*lists]
    raise ApiError(
        400, "prompt: expected text, token ids, or a list of one of them", param="prompt", code="invalid_value"
    )
