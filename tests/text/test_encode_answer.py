"""A continued answer has the tokens that the model wrote, and none that ends its turn."""

from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.chat_template import encode_answer
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch


def ids_of(tokenizer: Tokenizer, written: str) -> list[int]:
    return encode_answer(tokenizer, [PromptStretch(written, True)])


@given(
    text=st.lists(st.sampled_from(["<think>", "<|im_end|>", "<|im_end", "|>", "<tool_call>", " ", "é", "a", "\ud800"]))
)
def test_an_answer_keeps_its_text_and_ends_no_turn(tokenizer: Tokenizer, text: list[str]) -> None:
    written = "".join(text)
    ids = ids_of(tokenizer, written)
    assert tokenizer.spell(ids).decode() == written.replace("\ud800", "\ufffd")
    assert not {tokenizer.special(name) for name in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")} & {*ids}
