"""Turn the messages of a chat into the request of its next answer."""

from collections.abc import Mapping, Sequence

from localdflash.answers.answer import Prepared
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ModelError
from localdflash.loading.load import LoadedPair
from localdflash.text.chat_template import TemplateMessage, encode_answer, encode_chat


def prepare(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    max_tokens: int,
    params: SamplingParams,
    *,
    variables: Mapping[str, str | bool] | None = None,
    cancelled: Cancelled = never,
    goes_on: bool = False,
) -> Prepared:
    """The request of the answer to these messages; `variables` are switches of the model's chat template.

    With `goes_on` the last message is an answer to be continued. ModelError if the model has no template; also raises
    what `encode_chat` does.
    """
    tokenizer = loaded.tokenizer
    ids = prompt_ids(loaded, messages, variables=variables, goes_on=goes_on)
    return Prepared(Request(ids, max_tokens, params, tokenizer.ends, cancelled))


def prompt_ids(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
    goes_on: bool = False,
) -> list[int]:
    """The ids that the model reads; see `prepare`."""
    asked, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    ids = encode_chat(loaded.tokenizer, template_of(loaded), asked, variables=variables)
    return ids + encode_answer(loaded.tokenizer, begun) if begun else ids


def template_of(loaded: LoadedPair) -> str:
    """The model's chat template; ModelError if it has none."""
    if template := loaded.tokenizer.chat_template():
        return template
    raise ModelError(f"{loaded.files.target}: the model has no chat template: it can complete, but not chat")
