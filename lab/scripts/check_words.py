"""Check names, docstrings and pages against the project's rules of writing; `make lint` runs it.

`PYTHONPATH=. python -P lab/scripts/check_words.py` prints each violation as `file:line: problem`, exit code 1 if any.
"""

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("localdflash", "tui", "lsp", "kernels", "lab")
PARTICIPLES = {
    "Told",
    "Said",
    "Shown",
    "Kept",
    "Found",
    "Taken",
    "Chosen",
    "Sent",
    "Known",
    "Held",
    "Drawn",
    "Seen",
    "Gone",
}
NOUNS = {"Speed", "Seed", "Need", "Feed", "Shared", "Embed"}  # end like participles
RIDDLES = ("What", "Whether", "Who", "How", "The same", "Those")
PHRASES = {
    "keys and values": "KV cache, or K and V",
    "plain decoding": "autoregressive decoding, or without drafting",
    "decodes plainly": "decodes without drafting",
    "a lone row": "a single-token batch",
    "tokens a verify": "tokens per verify step",
    "foreign server": "remote server",
    "is told of": "reports",
    "counts apart": "is calibrated separately",
    "who drafts": "active drafters",
    "as it comes": "unmodified",
    "makes no sense": "invalid, with what was expected",
    "first text": "first token, TTFT",
}
COLUMNS = 100


def problems_of_names() -> Iterator[str]:
    """Yield classes named by a participle, but for Textual's messages, and names that two classes share."""
    places = defaultdict[str, list[str]](list)
    for path, tree in trees(PRODUCT):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                place = f"{path}:{node.lineno}"
                places[node.name.strip("_")].append(place)
                last = re.findall(r"[A-Z][a-z]*|[a-z]+", node.name)[-1]
                is_event = any(isinstance(base, ast.Name) and base.id == "Message" for base in node.bases)
                if not is_event and (last.endswith("ed") or last in PARTICIPLES) and last not in NOUNS:
                    yield f"{place}: class {node.name} is named by a past participle; name the object"
    for name, found in places.items():
        if len(found) > 1:
            yield f"{found[1]}: class {name} has the name of {found[0]}"


def problems_of_docstrings() -> Iterator[str]:
    """Yield docstrings that do not name what they describe, and phrases that the glossary replaces."""
    for path, tree in trees((*PRODUCT, "tests")):
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            text = ast.get_docstring(node) or ""
            place = f"{path}:{getattr(node, 'lineno', 1)}"
            if found := next((word for word in RIDDLES if re.match(rf"{word}\b", text)), None):
                yield f'{place}: the docstring starts with "{found}"; start with a verb or a noun'
            if found := next((phrase for phrase in PHRASES if phrase in text), None):
                yield f'{place}: "{found}" in a docstring; write: {PHRASES[found]}'


def problems_of_pages() -> Iterator[str]:
    """Yield lines of prose over 100 columns, outside tables, code and links that cannot wrap."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in sorted(pages):
        fenced = False
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
            fenced ^= line.startswith("```")
            unbroken = max((len(word) for word in re.split(r" (?![^`]*`[^`]*(?:`[^`]*`[^`]*)*$)", line)), default=0)
            if len(line) > COLUMNS and not fenced and not line.startswith("|") and unbroken < COLUMNS - 25:
                yield f"{page.relative_to(ROOT)}:{number}: {len(line)} columns; wrap at {COLUMNS}"


def trees(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the Python files below some folders, parsed; not the prompts of the benches."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "prompts" not in path.parts:
                yield path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))


def main() -> int:
    """Print all problems."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = [*problems_of_names(), *problems_of_docstrings(), *problems_of_pages()]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
