"""A pair loaded in this process, asked as a chat asks the engine: without the daemon, or decoded plainly to compare."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import cast

from localdflash.chat.answerer import About, AnswerPiece, Done, Restarted
from localdflash.chat.messages import Finish, Message, prompt_text
from localdflash.chat.request import template_variables
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.engine.pair import Cancelled
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Answer
from localdflash.server.answers.conversation import prepare, prompt_ids, template_of
from localdflash.server.answers.repetition import Repetition
from localdflash.text.chat_template import TemplateMessage


class InProcess:
    """See `talk.Answering`. An answer is stopped by `cancelled`, which is asked between two steps of it."""

    def __init__(self, loaded: LoadedPair, cancelled: Cancelled) -> None:
        template_of(loaded)  # a model without one is refused before the first question
        self.about: About | None = About(loaded.options.pair, loaded.context, loaded.backend, sampling=loaded.sampling)
        self._loaded, self._cancelled = loaded, cancelled

    async def answer(
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "", goes_on: bool = False
    ) -> AsyncGenerator[AnswerPiece | Restarted | Done, None]:
        """The answer to these messages; ContextOverflow if it does not fit. The event loop waits for each step."""
        settings = settings.resolved(self._loaded.sampling, self._loaded.context)
        prepared = prepare(
            self._loaded,
            _spoken(messages, system),
            settings.max_tokens or 0,
            settings.params,
            variables=template_variables(settings),
            cancelled=self._cancelled,
            goes_on=goes_on,
        )
        answer = Answer(self._loaded, replace(prepared, ending=Repetition))
        for text in answer:
            yield AnswerPiece(text)
            await asyncio.sleep(0)
        request = answer.request
        prompt = len(request.ids)
        about = {"model": self._loaded.files.id, "prompt_tokens": prompt}
        numbers = {**about, "cached_tokens": max(prompt - 1 - request.computed, 0)}
        yield Done(cast("Finish", answer.finish), numbers | request.stats.as_dict())

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        """The number of tokens of the prompt of these messages."""
        return len(prompt_ids(self._loaded, _spoken(messages, system), variables=template_variables(settings)))


def _spoken(messages: Sequence[Message], system: str) -> list[TemplateMessage]:
    before = [TemplateMessage("system", system)] if system else []
    return [*before, *(TemplateMessage(message.role, prompt_text(message)) for message in messages)]
