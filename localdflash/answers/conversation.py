"""A chat as a list of messages over one loaded pair. An answer joins the history when it has been read to its end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from localdflash.answers.answer import Answer, Prepared
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

    With `goes_on` the last message is an answer that is gone on with. ModelError where the model has no template, and
    what `encode_chat` raises.
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
    """What the model reads; see `prepare`."""
    asked, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    ids = encode_chat(loaded.tokenizer, template_of(loaded), asked, variables=variables)
    return ids + encode_answer(loaded.tokenizer, begun) if begun else ids


def template_of(loaded: LoadedPair) -> str:
    """The model's chat template; ModelError where it has none."""
    if template := loaded.tokenizer.chat_template():
        return template
    raise ModelError(f"{loaded.files.target}: the model has no chat template: it can complete, but not chat")


class Conversation:
    """Messages so far, and how to answer the next one."""

    def __init__(self, loaded: LoadedPair, params: SamplingParams, max_tokens: int, system: str = "") -> None:
        template_of(loaded)  # a model without one is refused before the first question
        self.loaded = loaded
        self.max_tokens = max_tokens
        self._params, self._system = params, system
        self.messages: list[TemplateMessage] = []
        self.clear()

    @property
    def pair(self) -> str:
        """The name that the pair was asked for by."""
        return self.loaded.options.pair

    def clear(self) -> None:
        """Start over."""
        self.messages = [TemplateMessage("system", self._system)] if self._system else []

    def recall(self, system: str, messages: Sequence[tuple[str, str]]) -> None:
        """Go on from these instructions and messages: (role, text)."""
        self._system = system
        self.clear()
        self.messages += [TemplateMessage("user" if role == "user" else "assistant", text) for role, text in messages]

    def ask(self, text: str, cancelled: Cancelled = never) -> "Reply":
        """The answer to one more message; ContextOverflow where it does not fit, and the history stays as it was."""
        messages = [*self.messages, TemplateMessage("user", text)]
        prepared = prepare(self.loaded, messages, self.max_tokens, self._params, cancelled=cancelled)
        return Reply(self, messages, Answer(self.loaded, prepared.request, prepared.stops))


class Reply:
    """Iterate for the answer's text; afterwards it is part of the conversation, a cancelled one as far as it went."""

    def __init__(self, conversation: Conversation, messages: list[TemplateMessage], answer: Answer) -> None:
        self.request = answer.request
        self._conversation, self._messages, self._answer = conversation, messages, answer

    @property
    def finish(self) -> str:
        """Why the answer ended."""
        return self.request.finish

    @property
    def numbers(self) -> dict[str, Any]:
        """Its statistics so far."""
        return self.request.stats.as_dict()

    def __iter__(self) -> Iterator[str]:
        parts: list[str] = []
        try:
            for text in self._answer:
                parts.append(text)
                yield text
        finally:
            self._conversation.messages = [*self._messages, TemplateMessage("assistant", "".join(parts))]
