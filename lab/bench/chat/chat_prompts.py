"""Prompts of the chat benchmark: 40 questions of each category.

Code comes from `lab/bench/prompts/`, talk and JSON from `questions.toml`; no drafter was trained on either. Choices are
hashes of a question's id, so the set is the same on every machine.
"""

import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localdflash.base.errors import UsageError
from localdflash.lab.bench.prompt_set import FOLDER, DocumentedFunction, choose, functions_of, valid_change
from localdflash.lab.train.examples import fenced

ChatCategory = Literal["function", "explain", "edit", "types", "tests", "talk", "json"]
MAX_TOKENS: dict[ChatCategory, int] = {
    "function": 96,
    "explain": 80,
    "edit": 160,
    "types": 128,
    "tests": 96,
    "talk": 96,
    "json": 96,
}
CATEGORIES = tuple(MAX_TOKENS)
PROMPTS_PER_CATEGORY = 40
MAX_FUNCTION_CHARS = 900  # maximum length of a function in a question
QUESTIONS = Path(__file__).with_name("questions.toml")
MAX_LIST_ITEMS = 4  # maximum length of a JSON list, since a small model may never end it

JsonSchema = dict[str, Any]


@dataclass(frozen=True)
class ChatPrompt:
    """Question; with a schema, the answer must be JSON that matches it."""

    id: str
    category: ChatCategory
    question: str
    max_tokens: int
    schema: JsonSchema | None = None


def load(limit: int | None = None) -> list[ChatPrompt]:
    """Return the prompts, categories alternating; only `limit` of each category if given (UsageError below 1)."""
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: expected 1 or more")
    questions = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    sources = [path.read_text(encoding="ascii") for path in sorted(FOLDER.glob("*.py"))]
    return [
        _prompt(category, number, sources[number], questions)
        for number in range(min(limit or PROMPTS_PER_CATEGORY, PROMPTS_PER_CATEGORY))
        for category in CATEGORIES
    ]


def _prompt(category: ChatCategory, number: int, source: str, questions: dict[str, Any]) -> ChatPrompt:
    id_, schema = f"{category}/{number:02}", None
    if category == "talk":
        question = questions["talk"][number]
    elif category == "json":
        request, fields = questions["json"][number]
        schema = schema_of(fields)
        question = f"{request} Answer with a JSON object that has the fields {', '.join(schema['required'])}."
    else:
        question = _MAKERS[category](id_, source)
    return ChatPrompt(id_, category, question, MAX_TOKENS[category], schema)


def schema_of(fields: str) -> JsonSchema:
    """Return the JSON schema of an object from text such as `age:integer size:small|big tags:strings`."""
    types = dict(field.split(":") for field in fields.split())
    return {
        "type": "object",
        "properties": {name: _type(kind) for name, kind in types.items()},
        "required": list(types),
        "additionalProperties": False,
    }


def _type(kind: str) -> JsonSchema:
    if "|" in kind:
        return {"enum": kind.split("|")}
    if kind == "strings":
        return {"type": "array", "items": {"type": "string"}, "maxItems": MAX_LIST_ITEMS}
    return {"type": kind}


def _choose_function(id_: str, source: str) -> DocumentedFunction:
    functions = [function for function in functions_of(source) if len(function.text) <= MAX_FUNCTION_CHARS]
    return functions[choose(id_, len(functions))]


def _choose_wording(id_: str, *wordings: str) -> str:
    return wordings[choose(f"{id_} wording", len(wordings))]


def _function(id_: str, source: str) -> str:
    function = _choose_function(id_, source)
    code = fenced(f'{function.signature}\n    """{function.doc}"""')
    return _choose_wording(
        id_,
        f"Write the body of this function.\n{code}",
        f"Please implement this in Python:\n\n{code}",
        f"Here is a function without its body. Fill it in.\n{code}",
        f"{function.doc}\n\nWrite that as a Python function. It begins like this:\n{fenced(function.signature)}",
    )


def _explain(id_: str, source: str) -> str:
    function = _choose_function(id_, source)
    wording = _choose_wording(
        id_,
        "What does this function do, and how?",
        "I am new to this code. Explain it to me.",
        "Explain this code.",
        "Summarise this function for a colleague.",
    )
    return f"{wording}\n{fenced(function.without_docstring)}"


def _edit(id_: str, source: str) -> str:
    if choose(f"{id_} free", 4) != 0:  # three of four questions request a small change with one right answer
        change = valid_change(id_, [f.text for f in functions_of(source) if 300 <= len(f.text) <= MAX_FUNCTION_CHARS])
        order = _choose_wording(id_, "", " Give me the whole function.", " Leave the rest as it is.")
        return f"{change.instruction}{order}\n{fenced(change.before)}"
    wording = _choose_wording(
        id_,
        "Make the names in this function clearer.",
        "Add a comment to each step of this function.",
        "Let this function check its arguments.",
    )
    return f"{wording}\n{fenced(_choose_function(id_, source).text)}"


def _types(id_: str, source: str) -> str:
    wording = _choose_wording(
        id_,
        "Add type hints to this function.",
        "Annotate the arguments and the result of this function.",
        "Give me this function with type hints.",
    )
    return f"{wording}\n{fenced(_choose_function(id_, source).text)}"


def _tests(id_: str, source: str) -> str:
    function = _choose_function(id_, source)
    wording = _choose_wording(
        id_,
        "Write unit tests for this function.",
        f"Write tests for `{function.text.split('def ')[1].split('(')[0]}` with pytest.",
        "How would you test this? Show me the code.",
    )
    return f"{wording}\n{fenced(function.without_docstring)}"


_MAKERS: dict[ChatCategory, Callable[[str, str], str]] = {
    "function": _function,
    "explain": _explain,
    "edit": _edit,
    "types": _types,
    "tests": _tests,
}


def long_document(seed: int) -> str:
    """Return all modules concatenated, in an order that the seed decides."""
    paths = sorted(FOLDER.glob("*.py"))
    random.Random(seed).shuffle(paths)
    return "\n\n".join(f"# {path.name.partition('_')[2]}\n{path.read_text(encoding='ascii')}" for path in paths)
