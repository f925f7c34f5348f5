"""Turn the messages of a chat into the request of its next answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from localdflash.base.errors import ModelError
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never_cancelled
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Prepared
from localdflash.text.answer_format import AnswerStart, FirstPart, format_of, template_switches
from localdflash.text.chat_template import TemplateMessage, encode_answer, encode_prompt, render
from localdflash.text.tool_calls import syntax_of
from localdflash.text.tools_in_words import describe_in_words
from localdflash.text.user_text import PromptStretch


def prepare(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    max_tokens: int,
    params: SamplingParams,
    *,
    variables: Mapping[str, str | bool] | None = None,
    cancelled: Cancelled = never_cancelled,
    goes_on: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    first_part: FirstPart = "",
) -> Prepared:
    """Return the request of the answer to these messages; `variables` are switches of the model's chat template.

    With `goes_on` the last message is an answer to be continued; with `first_part` it has no thoughts before it, for a
    grammar that knows none. `tools` are described to the model, in words if its template knows none. ModelError if the
    model has no template; also raises what `render` does.
    """
    prompt, start = _begin(loaded, messages, variables, goes_on, first_part, tools)
    ids = _ids(loaded, prompt, start)
    return Prepared(Request(ids, max_tokens, params, loaded.tokenizer.ends, cancelled), spelling=start.spelling)


def prompt_ids(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
    goes_on: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Return the ids that the model reads; see `prepare`."""
    return _ids(loaded, *_begin(loaded, messages, variables, goes_on, "", tools))


def prompt_text(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
    goes_on: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text that the model reads; see `prepare`."""
    prompt, start = _begin(loaded, messages, variables, goes_on, "", tools)
    return "".join(piece.text for piece in (*prompt, *start.prompt))


def _begin(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    variables: Mapping[str, str | bool] | None,
    goes_on: bool,
    first_part: FirstPart,
    tools: Sequence[Mapping[str, Any]],
) -> tuple[list[PromptStretch], AnswerStart]:
    """Return the prompt as the template makes it, and how the answer begins."""
    tokenizer, template = loaded.tokenizer, template_of(loaded)
    asked, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    known = {**tokenizer.template_tokens(), **template_switches(template, variables)}
    if syntax_of(tokenizer) == "words":
        asked, tools = describe_in_words(asked, tools), ()
    prompt = render(template, asked, variables=known, tools=tools)
    return prompt, format_of(tokenizer).start(prompt, begun, first_part=first_part)


def _ids(loaded: LoadedPair, prompt: Sequence[PromptStretch], start: AnswerStart) -> list[int]:
    tokenizer = loaded.tokenizer
    return encode_prompt(tokenizer, prompt) + encode_answer(tokenizer, start.prompt)


def template_of(loaded: LoadedPair) -> str:
    """Return the model's chat template; ModelError if it has none."""
    if template := loaded.tokenizer.chat_template():
        return template
    raise ModelError(f"{loaded.files.target}: the model has no chat template: it can complete, but not chat")
