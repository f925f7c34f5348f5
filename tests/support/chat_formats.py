"""Vocabularies and chat templates in the forms of model families, written for the tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

CONTROL, USER_DEFINED = 3, 4  # GGUF token types

HARMONY_TOKENS = dict.fromkeys(
    ("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>"), CONTROL
)
HARMONY = """
{%- set effort = reasoning_effort if reasoning_effort is defined else "medium" -%}
{{- "<|start|>system<|message|>Reasoning: " + effort + "<|end|>" -}}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {%- if "<|channel|>" in message.content %}{{ raise_exception("a channel in a content") }}{% endif -%}
        {%- if "thinking" in message and loop.last and not add_generation_prompt -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}
        {%- endif -%}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
    {%- else -%}
        {{- "<|start|>" + ("developer" if message.role == "system" else message.role) -}}
        {{- "<|message|>" + message.content + "<|end|>" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "<|start|>assistant" }}{% endif -%}
"""

QWEN_TOKENS = dict.fromkeys(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), CONTROL) | dict.fromkeys(
    ("<think>", "</think>", "<tool_call>", "</tool_call>"), USER_DEFINED
)
_QWEN = """
{%- set last = namespace(user=-1) -%}
{%- for message in messages %}{% if message.role == "user" %}{% set last.user = loop.index0 %}{% endif %}{% endfor -%}
{%- for message in messages -%}
    {%- set content = message.content -%}
    {%- set thought = message.reasoning_content if message.reasoning_content is string else "" -%}
    {{- "<|im_start|>" + message.role + "\\n" -}}
    {%- if message.role == "assistant" and loop.index0 > last.user -%}
        {{- "<think>\\n" + thought + "\\n</think>\\n\\n" -}}
    {%- endif -%}
    {{- content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- "<think>\\n\\n</think>\\n\\n" -}}
    OPENS
    {%- endif -%}
{%- endif -%}
"""
QWEN3 = _QWEN.replace("    OPENS\n", "")
QWEN35 = _QWEN.replace(
    "    OPENS\n", '    {%- else -%}\n        {{- "<think>\\n" -}}\n'
)  # the answer begins inside thoughts

GEMMA_TOKENS = dict.fromkeys(("<eos>", "<bos>", "<|turn>", "<turn|>", "<|think|>"), CONTROL) | dict.fromkeys(
    ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", '<|"|>'), USER_DEFINED
)
GEMMA = """
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{{- bos_token -}}
{%- if thinks or messages[0].role == "system" -%}
    {{- "<|turn>system\\n" + ("<|think|>\\n" if thinks else "") -}}
    {%- if messages[0].role == "system" %}{{ messages[0].content | trim }}{% endif -%}
    {{- "<turn|>\\n" -}}
{%- endif -%}
{%- for message in messages if message.role != "system" -%}
    {{- "<|turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" -}}
    {%- set thought = message.get("reasoning") or message.get("reasoning_content") -%}
    {%- if thought and message.get("tool_calls") %}{{ "<|channel>thought\\n" + thought + "\\n<channel|>" }}{% endif -%}
    {{- message.content | trim -}}
    {{- "<turn|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|turn>model\\n" -}}
    {%- if not thinks %}{{ "<|channel>thought\\n<channel|>" }}{% endif -%}
{%- endif -%}
"""

TEMPLATES = {"harmony": HARMONY, "qwen3": QWEN3, "qwen3.5": QWEN35, "gemma": GEMMA}
TOKENS = {"harmony": HARMONY_TOKENS, "qwen3": QWEN_TOKENS, "qwen3.5": QWEN_TOKENS, "gemma": GEMMA_TOKENS}


# Templates that describe tools in each family's format, reduced to the parts about tools.

_CALLS = "{%- for call in message.tool_calls or [] -%}{%- set call = call.function -%}"
TOOL_TEMPLATES = {
    "hermes": (
        "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
        "<|im_end|>\n{% endif -%}"
        "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' + message.content -}}"
        + _CALLS
        + '{{- \'<tool_call>\n{"name": "\' + call.name + \'", "arguments": \' -}}{{- call.arguments | tojson -}}'
        "{{- '}\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endfor -%}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"
    ),
    "tags": (
        "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<tool_call>\n"
        "<function=example>\n</function>\n</tool_call><|im_end|>\n{% endif -%}"
        "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' + message.content -}}"
        + _CALLS
        + "{{- '<tool_call>\n<function=' + call.name + '>\n' -}}{%- for key, value in call.arguments | items -%}"
        "{{- '<parameter=' + key + '>\n' -}}{{- value if value is string else value | tojson -}}"
        "{{- '\n</parameter>\n' -}}{%- endfor -%}{{- '</function>\n</tool_call>' -}}{%- endfor -%}"
        "{{- '<|im_end|>\n' -}}{%- endfor -%}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"
    ),
    "gemma": "{{- tools | tojson -}}" + GEMMA,
    "harmony": "{{- tools | tojson -}}" + HARMONY,
    "llama": (
        "{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif -%}"
        "{%- for message in messages %}{{ message.role + ': ' + message.content + '<|eot_id|>' }}{% endfor -%}"
    ),
    "words": (  # without tools
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
        "{%- endfor -%}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}"
    ),
}
TOOL_TOKENS = {
    "hermes": QWEN_TOKENS,
    "tags": QWEN_TOKENS,
    "gemma": GEMMA_TOKENS,
    "harmony": HARMONY_TOKENS,
    "llama": dict.fromkeys(("<|eot_id|>", "<|python_tag|>", "<|eom_id|>"), CONTROL),
    "words": dict.fromkeys(("<|endoftext|>", "<|im_start|>", "<|im_end|>"), CONTROL),
}


@pytest.fixture(scope="session")
def vocabularies(make_vocabulary: Callable[..., Path]) -> dict[str, Path]:
    """Return a vocabulary with its chat template, by family."""
    return _written(make_vocabulary, TOKENS, TEMPLATES)


@pytest.fixture(scope="session")
def tool_vocabularies(make_vocabulary: Callable[..., Path]) -> dict[str, Path]:
    """Return a vocabulary with a chat template that supports tools, by call syntax."""
    return _written(make_vocabulary, TOOL_TOKENS, TOOL_TEMPLATES)


def _written(
    make: Callable[..., Path], tokens: dict[str, dict[str, int]], templates: dict[str, str]
) -> dict[str, Path]:
    return {
        family: make(tokens[family], {"tokenizer.chat_template": template}, bos="<bos>" if family == "gemma" else None)
        for family, template in templates.items()
    }
