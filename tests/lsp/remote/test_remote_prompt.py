"""Prompts for remote servers: as for our own engine, and code that spells a marker stays code."""

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import localdflash
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.prompt import assemble
from localdflash.lsp.remote.remote_prompt import RemotePrompt
from localdflash.lsp.remote.remote_source import gap_of
from localdflash.text.fim_formats import FORMATS, detect
from localdflash.text.tokenizer import Tokenizer
from tests.lsp.remote.made_up import BODY

EMBEDDED = Path(localdflash.__file__).parent / "models/embedded/target.gguf"
SPELLED = ["a", "é", "日", "_", " ", "\n", "\t", "(", "1", "<|fim_suffix|>", "<|im_end|>", "<", "|>"]
code = st.lists(st.sampled_from(SPELLED)).map("".join)


def test_the_prompt_is_the_one_that_our_own_engine_computes() -> None:
    tokenizer = Tokenizer.load(EMBEDDED)
    form = replace(detect(tokenizer), file_tokens=None)
    markers = {one: tokenizer.special(one) for one in form.markers}
    for body in (BODY, {**BODY, "suffix": ""}, {**BODY, "prefix": "", "middle": ""}):
        gap, others = gap_of(body)
        ids = assemble(Encoder(tokenizer), form, 1024, gap, others, 96).ids
        bos = tokenizer.bos()
        sent = [] if bos is None else [bos]
        texts = RemotePrompt(form, context=1024).texts(gap, others, 96)
        for number, text in enumerate(texts):
            sent += [markers[text]] if number % 2 else tokenizer.encode(text, continues=True)
        assert tokenizer.spell(sent) == tokenizer.spell(ids)
        assert [one for one in sent if one in markers.values()] == [one for one in ids if one in markers.values()]


@given(code, code, code)
def test_a_prompt_has_each_marker_once_whatever_the_code_spells(before: str, typed: str, after: str) -> None:
    gap, _ = gap_of({"prefix": before + "\n", "middle": typed, "suffix": after})
    own, sides = (RemotePrompt(form).fields(gap, (), 96) for form in (FORMATS["qwen"], None))
    assert re.findall(r"<\|\w+\|>", str(own["prompt"])) == ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    assert not re.search(r"<\|\w+\|>", f"{sides['prompt']} {sides['suffix']}")
