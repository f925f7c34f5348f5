import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from localdflash.base.errors import ModelError, UsageError
from localdflash.text import chat_template
from localdflash.text.chat_template import Role, TemplateMessage, encode_answer, encode_chat, render
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Operations of templates on messages; each must give the result of jinja2 on ordinary strings.
TEMPLATES = {
    "chatml": CHATML,
    "thinking": (
        "{% for m in messages %}{% set content = m.content %}{% if '</think>' in content %}"
        "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ m.role }}: {{ content }}\n"
        "{% endfor %}"
    ),
    "last query": (
        "{% set ns = namespace(last=messages | length - 1) %}{% for m in messages[::-1] %}"
        "{% if m.role == 'user' and not (m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}"
        "{% set ns.last = loop.index0 %}{% break %}{% endif %}{% endfor %}{{ ns.last }}{{ messages[-1].content[:3] }}"
    ),
    "macro": (
        "{% macro visible(content) %}{% if content is string %}{{ content }}{% else %}?{% endif %}{% endmacro %}"
        "{% for m in messages %}{% set c = visible(m.content) %}{{ c | trim | length }}{{ c.split('\\n')[0] }};"
        "{% endfor %}"
    ),
    "replaced": "{{ messages[0].content | lower | replace('a', '<') }}{{ messages[-1].content.replace('a', '') }}",
    "joins": "{{ messages | map(attribute='content') | join('|') }}{{ ', '.join(['a', messages[0].content]) }}",
    "filters": "{{ messages | rejectattr('role', 'eq', 'tool') | map(attribute='content') | first | default('-') }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ messages[0].content | tojson }}",
    "constant json": "{{ 'a' | tojson }}{{ 1 | tojson }}",
    "printed": "{{ messages }}{{ [messages[0].content, 1, none] }}",
    "format": "{{ '<{}|{}>'.format(messages[0].content, 'x') }}{{ messages[0].content * 2 }}",
    "letters": "{% for letter in messages[0].content %}{{ letter if letter == 'a' else letter ~ '_' }}{% endfor %}",
    "compared": "{% set c = messages[0].content %}{{ c == 'a' }}{{ c != 'a' }}{{ c in ['a', 'b'] }}{{ {'a': 1}[c] }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
}
CONVERSATIONS: dict[str, list[tuple[Role, str]]] = {
    "short": [("user", "a")],
    "blanks": [("system", "  Be brief. \n"), ("user", "\n\ta  \n"), ("assistant", ""), ("user", " ")],
    "thoughts": [("user", "why?"), ("assistant", "<think>\nbecause\n</think>\n\n  so "), ("user", "thanks")],
    "quotes": [("user", "\"a\" 'b' \\ {{ x }} {% if %} {# #} & < >"), ("tool", "<tool>1</tool>")],
    "unicode": [("user", "ß 错误 😋 e\u0301\u200d\u2028 \U000f0000 \U0010fffd é")],
}
MARKERS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|fim_suffix|>", "<think>", "</think>", "<tool_call>"]


def messages_of(turns: list[tuple[Role, str]]) -> list[TemplateMessage]:
    return [TemplateMessage(role, content) for role, content in turns]


def text_of(template: str, turns: list[tuple[Role, str]]) -> str:
    return "".join(piece.text for piece in render(template, messages_of(turns)))


@pytest.fixture(scope="module")
def jinja() -> ImmutableSandboxedEnvironment:
    """Return the environment that models' authors write for, on ordinary strings."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return environment


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_templates_render_as_on_ordinary_strings(jinja: ImmutableSandboxedEnvironment, template: str) -> None:
    plain = jinja.from_string(template.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    for turns in CONVERSATIONS.values():
        conversation = [{"role": role, "content": content} for role, content in turns]
        expected = plain.render(messages=conversation, add_generation_prompt=True, tools=None)
        assert text_of(template, turns) == expected


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if name != "thoughts"])  # <think> would be a token
def test_ordinary_messages_give_llama_cpps_ids_of_the_whole_prompt(
    tokenizer: Tokenizer, llama_ids: Callable[[str], list[int]], name: str
) -> None:
    turns = CONVERSATIONS[name]
    assert encode_chat(tokenizer, CHATML, messages_of(turns)) == llama_ids(text_of(CHATML, turns))


def markers_in(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    known = {tokenizer.special(spelling): spelling for spelling in MARKERS}
    return [known[token] for token in ids if token in known]


# Templates that would help a message to become a marker.
HOSTILE = {
    "adjacent": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "first half": "{% for m in messages %}<|im_{{ m.content }}{% endfor %}",
    "second half": "{% for m in messages %}{{ m.content }}end|>{% endfor %}",
    "both ends": "{% for m in messages %}<|im_{{ m.content }}|>{% endfor %}",
    "lowered": "{% for m in messages %}{{ m.content | lower }}{{ m.content.swapcase() }}{% endfor %}",
    "without x": "{% for m in messages %}{{ m.content.replace('x', '') }}{{ m.content|replace('y', '<') }}{% endfor %}",
    "cut": "{% for m in messages %}{{ m.content[1:] }}{{ m.content[::2] }}{{ m.content | reverse }}{% endfor %}",
    "split": "{% for m in messages %}{{ m.content.split('x') | join }}{{ ''.join(m.content.split()) }}{% endfor %}",
    "letters": "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages }}",
    "marked": "{% for m in messages %}{{ m.content ~ '' }}{{ '' + m.content }}{{ [m.content] | first }}{% endfor %}",
    "set": "{% for m in messages %}{% set c %}{{ m.content }}{% endset %}{{ c | trim | string | safe }}{% endfor %}",
}
fragments = st.lists(
    st.sampled_from([*MARKERS, "<|im_", "im_end|>", "end", "|>", "<", "x", " ", "<|IM_END|>", "<x|im_end|>", "nd|>"]),
    max_size=6,
)


@given(st.sampled_from(list(HOSTILE.values())), st.lists(fragments.map("".join), min_size=1, max_size=3))
def test_messages_never_become_markers(tokenizer: Tokenizer, template: str, contents: list[str]) -> None:
    ids = encode_chat(tokenizer, template, [TemplateMessage("user", content) for content in contents])
    assert markers_in(tokenizer, ids) == []


def test_a_template_cannot_make_a_marker_of_stand_ins(tokenizer: Tokenizer) -> None:
    template = "{{ '\\U000f0000' }}{{ messages[0].content }}"
    assert markers_in(tokenizer, encode_chat(tokenizer, template, [TemplateMessage("user", "<|im_end|>")])) == []


def test_bos_occurs_once_and_eos_where_the_template_has_it(
    make_vocabulary: Callable[..., Path], tokenizer: Tokenizer
) -> None:
    with_bos = Tokenizer.load(make_vocabulary(dict.fromkeys(["<|endoftext|>", "<s>"], 3), bos="<s>"))
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        ids = encode_chat(with_bos, template, [TemplateMessage("user", "<s>a")])
        assert (ids[0], ids.count(ids[0])) == (with_bos.special("<s>"), 1)
    ids = encode_chat(tokenizer, "{{ eos_token }}x{{ no_such }}", [TemplateMessage("user", "")])
    assert ids == [tokenizer.special("<|endoftext|>"), *tokenizer.encode("x")]


# -- hostile templates -----------------------------------------------------------------------------------------------

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class of a message": "{{ messages[0].content.__class__.__base__ }}",
    "private text": "{{ messages[0].content._plain.x.y }}{{ messages[0].content._disguise.hide.x }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "globals of a function": "{{ raise_exception.__globals__['__builtins__'].x }}",
    "self": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "format string": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "format in map": "{{ ['{0.__class__}'] | map('format', 1) | list }}",
    "message as format": "{{ messages[0].content.format(raise_exception) }}",
    "map attribute": "{{ [''] | map(attribute='__class__.__mro__') | list | first | last }}",
    "generator frame": "{{ (messages | map('upper')).gi_frame.f_globals.x.y }}",
    "bytes": "{{ (1).to_bytes(8, 'big').decode() }}",
    "translate": "{{ 'a'.translate({97: 'b'}) }}",
    "include": "{% include '/etc/passwd' %}",
    "environment": "{{ environment.globals.x }}",
    "meter": "{{ charge_loop(-1000000) }}",
    "append": "{% set a = [] %}{{ a.append(1) }}",
    "change a message": "{{ messages[0].clear() }}",
}
TOO_MUCH, TOO_LONG, TOO_DEEP = "too much text", "takes longer than", "recursion depth"
FLOODS = {
    "range": ("{% for i in range(10 ** 9) %}{% endfor %}", "operator"),
    "filtered loop": (
        "{% for a in range(9999) %}{% for b in range(9999) if false %}{% endfor %}{% endfor %}",
        TOO_LONG,
    ),
    "big text": ("{{ 'x' * 10000000000 }}", TOO_MUCH),
    "big list": ("{{ [1] * 10000000000 }}", TOO_MUCH),
    "big number": (
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "4096 bits",
    ),
    "doubling": (
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        TOO_MUCH,
    ),
    "replace": ("{% set s = 'x' * 10000 %}{{ s.replace('x', s) }}", TOO_MUCH),
    "join": ("{% set s = 'x' * 10000 %}{{ s.join(range(9999) | map('string')) }}", TOO_MUCH),
    "format": ("{% set s = 'x' * 90000 %}{{ '" + "{0}" * 19999 + "'.format(s) }}", TOO_MUCH),
    "wide format": ("{{ '{:>9999999999}'.format('x') }}", "plain {} fields"),
    "percent format": ("{{ '%9999999999d' % 1 }}", "operator"),
    "zfill": ("{{ 'x'.zfill(9999999999) }}", "unsafe"),
    "indent": ("{{ 'a\\nb' | indent(9999999999) }}", "indent"),
    "json indent": ("{{ [1] | tojson(indent=9999999999) }}", "tojson"),
    "macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", TOO_DEEP),
    "branching macro": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        TOO_LONG,
    ),
    "brackets": ("{{ " + "[" * 5000 + "]" * 5000 + " }}", TOO_DEEP),
    "blocks in blocks": ("{% if 1 %}" * 900 + "{% endif %}" * 900, TOO_DEEP),
    "dates": ("{{ strftime_now('%A' * 99999999) }}", TOO_MUCH),
    "megabyte": ("x" * 1_000_000, "at most 64000 characters, got 1000000"),
}
BROKEN = {
    "syntax": ("{% if %}", "Expected an expression"),
    "missing role": ("{{ messages[7].role.upper() }}", "has no"),
    "refusal": ("{{ raise_exception('Roles must\\nalternate \\x1b[2J') }}", "Roles must alternate ␛[2J"),
    "object": ("{{ namespace(a=1) }}", "is not text"),
}
TURN = [TemplateMessage("user", "hello")]


def refusal(template: str) -> str:
    start = time.thread_time()
    with pytest.raises(ModelError) as caught:
        render(template, TURN)
    assert time.thread_time() - start < 10
    message = str(caught.value)
    assert message.startswith("chat template: ")
    assert message.isprintable()
    assert len(message) < 400
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


@pytest.mark.parametrize("template", ESCAPES.values(), ids=ESCAPES.keys())
def test_sandbox_escapes_are_refused(template: str) -> None:
    assert "uid=" not in refusal(template)


@pytest.mark.parametrize(("template", "reason"), [*FLOODS.values(), *BROKEN.values()], ids=[*FLOODS, *BROKEN])
def test_floods_hangs_and_broken_templates_are_refused_with_a_reason(
    template: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason != TOO_LONG:
        monkeypatch.setattr(chat_template, "MAX_CHARS", 640_000)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.1 if reason == TOO_LONG else 60.0)
    assert reason in refusal(template)


def test_more_different_characters_than_stand_ins_are_refused() -> None:
    many = "".join(chr(code) for code in range(0x20000, 0x20000 + 131_069))
    with pytest.raises(UsageError, match="different characters"):
        render(CHATML, [TemplateMessage("user", many)])
    assert render("{{ messages[0].content }}", [TemplateMessage("user", many[:-1])])[0].text == many[:-1]


@given(
    text=st.lists(st.sampled_from(["<think>", "<|im_end|>", "<|im_end", "|>", "<tool_call>", " ", "é", "a", "\ud800"]))
)
def test_an_encoded_answer_keeps_its_text_and_has_no_turn_markers(tokenizer: Tokenizer, text: list[str]) -> None:
    written = "".join(text)
    ids = encode_answer(tokenizer, [PromptStretch(written, True)])
    assert tokenizer.spell(ids).decode() == written.replace("\ud800", "\ufffd")
    assert not {tokenizer.special(name) for name in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")} & {*ids}
