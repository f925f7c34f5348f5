"""A chat as a list of messages over one loaded pair. An answer joins the history when it has been read to its end."""

from collections.abc import Iterator

from localdflash.answer import Answer
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never
from localdflash.engine.sampling import SamplingParams
from localdflash.errors import ModelError
from localdflash.loading import LoadedPair
from localdflash.text.chat_template import Message, encode_chat


class Conversation:
    """Messages so far, and how to answer the next one."""

    def __init__(self, loaded: LoadedPair, params: SamplingParams, max_tokens: int, system: str = "") -> None:
        template = loaded.tokenizer.chat_template()
        if not template:
            raise ModelError(f"{loaded.files.target}: the model has no chat template: it can complete, but not chat")
        self.loaded = loaded
        self.max_tokens = max_tokens
        self._template, self._params, self._system = template, params, system
        self.messages: list[Message] = []
        self.clear()

    def clear(self) -> None:
        """Start over."""
        self.messages = [Message("system", self._system)] if self._system else []

    def ask(self, text: str, cancelled: Cancelled = never) -> "Reply":
        """The answer to one more message; ContextOverflow where it does not fit, and the history stays as it was."""
        messages = [*self.messages, Message("user", text)]
        tokenizer = self.loaded.tokenizer
        ids = encode_chat(tokenizer, self._template, messages)
        request = Request(ids, self.max_tokens, self._params, tokenizer.ends, cancelled)
        return Reply(self, messages, Answer(self.loaded, request))


class Reply:
    """Iterate for the answer's text; afterwards it is part of the conversation, a cancelled one as far as it went."""

    def __init__(self, conversation: Conversation, messages: list[Message], answer: Answer) -> None:
        self.request = answer.request
        self._conversation, self._messages, self._answer = conversation, messages, answer

    def __iter__(self) -> Iterator[str]:
        parts: list[str] = []
        try:
            for text in self._answer:
                parts.append(text)
                yield text
        finally:
            self._conversation.messages = [*self._messages, Message("assistant", "".join(parts))]
