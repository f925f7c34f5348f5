"""A chat in this process with a model that thinks: the switch, what is kept, what goes to the model again."""

import asyncio
from pathlib import Path

import pytest

from localdflash.chat.in_process import InProcess
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.talk import Talk
from localdflash.engine.pair import never
from localdflash.loading.load_pair import LoadedPair
from tests.support.chat_formats import vocabularies
from tests.support.scripted_pair import scripted_pair, spelled
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "vocabularies"]

THINKS = ("<|channel|>", "analysis", "<|message|>", "because", "<|end|>", "<|start|>", "assistant")
SAYS = ("<|channel|>", "final", "<|message|>", "so it is.")


def turn(role: str, text: str) -> tuple[str, ...]:
    return ("<|start|>", role, "<|message|>", text, "<|end|>")


@pytest.mark.parametrize(("thinking", "effort"), [(True, "medium"), (False, "low")])
def test_a_chat_keeps_what_was_thought_and_the_model_does_not(
    vocabularies: dict[str, Path], thinking: bool, effort: str
) -> None:
    asked = (*turn("system", f"Reasoning: {effort}"), *turn("user", "why?"), "<|start|>", "assistant")
    again = (*asked, *SAYS, "<|end|>", *turn("user", "and?"), "<|start|>", "assistant")

    async def work(loaded: LoadedPair) -> None:
        talk = Talk(InProcess(loaded, never), None, "/home/x", print)
        talk.settings = ChatSettings(max_tokens=60, thinking=thinking)
        for question, prompt in (("why?", asked), ("and?", again)):
            shown: list[str] = []
            talk.say(question)
            answer = await talk.answer(lambda text, _, shown=shown: shown.append(text), shown.clear)  # type: ignore[misc]
            assert answer.text == "".join(shown) == "<think>\nbecause\n</think>\n\nso it is."
            assert answer.numbers["prompt_tokens"] == len(spelled(loaded.tokenizer, *prompt))
        await talk.close()

    with scripted_pair(vocabularies["harmony"], *THINKS, *SAYS, "<|return|>") as options, LoadedPair(options) as loaded:
        asyncio.run(work(loaded))
