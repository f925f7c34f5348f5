"""Questions about functions in Python sources, one question per function."""

import ast
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, zip_longest

from localdflash.lab.train.examples import (
    SourceFunction,
    add_line,
    change_number,
    edit_question,
    explain_question,
    fenced,
    function_question,
    functions,
    remove_line,
    rename,
)
from localdflash.lab.train.questions import Question

MAX_FUNCTION_CHARS = 700  # in a question: a token of a prompt costs the target as much time as one of an answer
MAX_FUNCTIONS_PER_FILE = 3  # so that no file dominates
SHARES = {"function": 0.32, "explain": 0.22, "edit": 0.16, "types": 0.14, "tests": 0.16}


def of_packages(packages: Iterable[list[str]], seed: int) -> Iterator[Question]:
    """Yield questions about the sources of several packages, alternating between the packages."""
    streams = [_of_sources(sources, f"{seed}/{number}") for number, sources in enumerate(packages)]
    return (question for question in chain.from_iterable(zip_longest(*streams)) if question is not None)


def _of_sources(sources: list[str], seed: str) -> Iterator[Question]:
    rng = random.Random(seed)
    for source in rng.sample(sources, len(sources)):
        yield from islice(of_source(source, rng), MAX_FUNCTIONS_PER_FILE)


def of_source(source: str, rng: random.Random) -> Iterator[Question]:
    """Yield at most one random question about each short function of a source file, in random order."""
    short_functions = [function for function in functions(source) if len(function.text) <= MAX_FUNCTION_CHARS]
    for function in rng.sample(short_functions, len(short_functions)):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        text = MAKERS[kind](function, rng)
        if text:
            yield Question(kind, text, False)


def _function(function: SourceFunction, rng: random.Random) -> str | None:
    doc, name = ast.get_docstring(function.node), function.node.name
    if not doc or len(doc) > 400 or len(doc) < 15:
        return None
    signature, first = function.signature, doc.split("\n\n")[0]
    quoted = f'{signature}\n    """{doc}"""'
    return rng.choice(
        (
            function_question(signature, doc),
            f"Write the body of this function.\n{fenced(quoted)}",
            f"Complete this Python function:\n\n{fenced(quoted)}",
            f"Implement `{name}` in Python. {first}",
            f"Write a Python function `{name}`.\n\n{doc}\n\nUse this signature:\n{fenced(signature)}",
        )
    )


def _explain(function: SourceFunction, rng: random.Random) -> str:
    code, name = f"{function.signature}\n{function.body}", function.node.name
    instruction = rng.choice(
        (
            "Explain this code.",
            "Explain this function step by step.",
            f"What does `{name}` do? Answer in two sentences.",
            "Describe the arguments and the result of this function.",
            "Write a docstring for this function.",
            "Could you walk me through this code?",
            "Is there a bug in this code, or could it be simpler?",
        )
    )
    return rng.choice((explain_question(code), edit_question(instruction, code)))


def _edit(function: SourceFunction, rng: random.Random) -> str | None:
    free = (
        "Add a docstring to this function.",
        "Add comments to this code.",
        f"Rename the function to `new_{function.node.name}`.",
        "Add error handling to this function.",
        "Rewrite this function so that it returns early.",
        "Remove the comments from this code.",
        "Add logging to this function.",
    )
    if rng.random() < 0.4:
        return edit_question(rng.choice(free), function.text)
    change = rng.choice((rename, rename, change_number, remove_line, add_line))(function.text, rng)
    if change is None:
        return None
    order = rng.choice(("", " Give the whole code.", " Change nothing else."))
    return edit_question(change.instruction + order, change.before)


def _types(function: SourceFunction, rng: random.Random) -> str | None:
    bare = without_annotations(function.text)
    if not bare:
        return None
    instruction = rng.choice(
        (
            "Add type hints to this function.",
            "Add type annotations to the arguments and the result.",
            "Rewrite this function with type hints.",
        )
    )
    return edit_question(instruction, bare)


def _tests(function: SourceFunction, rng: random.Random) -> str:
    instruction = rng.choice(
        (
            "Write unit tests for this function.",
            f"Write pytest tests for `{function.node.name}`.",
            "Write three test cases for this code.",
            "Test this function, edge cases included.",
        )
    )
    return edit_question(instruction, f"{function.signature}\n{function.body}")


MAKERS: dict[str, Callable[[SourceFunction, random.Random], str | None]] = {
    "function": _function,
    "explain": _explain,
    "edit": _edit,
    "types": _types,
    "tests": _tests,
}


def without_annotations(code: str) -> str | None:
    """Return a function's code without annotations; None if it is no function, or has no arguments except self."""
    try:
        node = ast.parse(code).body[0]
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    if not [argument for argument in arguments if argument.arg not in ("self", "cls")]:
        return None
    if node.returns is None and not any(argument.annotation for argument in arguments):
        return code  # in its original layout
    node.returns = None
    for argument in arguments:
        argument.annotation = None
    return ast.unparse(node)
