"""Prompts for remote servers: as for our own engine, and code that spells a marker stays code."""

import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import localdflash
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.prompt import assemble
from localdflash.lsp.foreign.pieces import InfillTask
from localdflash.lsp.foreign.remote_prompt import Marker, PromptBuilder
from localdflash.text.fim_formats import FORMATS, detect
from localdflash.text.tokenizer import Tokenizer
from tests.lsp.foreign.made_up import BODY

QWEN_FORM = FORMATS["qwen"]
EMBEDDED = Path(localdflash.__file__).parent / "models/embedded/target.gguf"
SPELLED = ["a", "é", "日", "_", " ", "\n", "\t", "(", "1", "<|fim_suffix|>", "<|im_end|>", "<", "|>"]
code = st.lists(st.sampled_from(SPELLED)).map("".join)


def place(**changes: Any) -> InfillTask:
    return InfillTask.of({**BODY, **changes})


def test_the_prompt_is_the_one_that_our_own_engine_computes() -> None:
    tokenizer = Tokenizer.load(EMBEDDED)
    form = detect(tokenizer)
    markers = {one: tokenizer.special(one) for one in form.markers}
    for body in (BODY, {**BODY, "suffix": ""}, {**BODY, "prefix": "", "middle": ""}):
        asked = InfillTask.of(body)
        ids = assemble(Encoder(tokenizer), form, 1024, asked.gap, asked.others, asked.max_tokens).ids
        bos = tokenizer.bos()
        sent = [] if bos is None else [bos]
        for part in PromptBuilder(form, markers, context=1024).parts(asked):
            sent += [markers[part]] if isinstance(part, Marker) else tokenizer.encode(part, continues=True)
        assert tokenizer.spell(sent) == tokenizer.spell(ids)
        assert [one for one in sent if one in markers.values()] == [one for one in ids if one in markers.values()]


@given(code, code, code)
def test_a_prompt_as_text_has_each_marker_once_whatever_the_code_spells(before: str, typed: str, after: str) -> None:
    prompts = PromptBuilder(QWEN_FORM, QWEN_FORM.files or ())
    spelled = prompts.render(place(prefix=before + "\n", middle=typed, suffix=after, context=[]))
    assert re.findall(r"<\|\w+\|>", spelled) == ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
