"""README and docs/: links, pictures, commands, measured numbers, and the architecture page agree with the tree."""

import ast
import re
import shlex
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest
from click.exceptions import NoArgsIsHelpError

from localdflash.cli import COMMANDS, cli
from localdflash.lab.scripts import tables

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
)
USER_PAGES = [page for page in (*PAGES, "lab/scripts/peers/README.md") if not page.startswith("docs/log/")]
BESIDE = ("kernels", "tui", "lsp", "lab")  # packages of localdflash that lie beside it in the source tree
IMPORT = re.compile(r"^ *(?:from|import) localdflash(?:\.| import )(\w+)", re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page: str) -> set[str]:
    """Return the fragments that a page's headings have on GitHub."""
    heads = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_picture_is_shown_with_the_command_that_makes_it() -> None:
    shown = set()
    for page in PAGES:
        for picture, beside in re.findall(r"!\[[^\]]*\]\(([^)]+)\)\n(.*)", text_of(page)):
            shown.add(Path(picture).name)
            (command,) = re.findall(r"`(PYTHONPATH=\. python -P lab/scripts/.*?|localdflash bench .*?)`", beside)
            if script := re.search(r"lab/scripts/\w+\.py", command):
                assert Path(picture).stem in (ROOT / script[0]).read_text(encoding="utf-8"), picture
            else:
                assert "--picture" in command
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}


def test_links_have_targets() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
            file, _, fragment = target.partition("#")
            path = ((ROOT / page).parent / file).resolve() if file else ROOT / page
            if target.startswith("http") or (path.exists() and not fragment):
                continue
            if not path.exists() or fragment not in anchors(str(path.relative_to(ROOT))):
                broken.append(f"{page}: {target}")
    assert broken == []


def documented(page: str, program: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a page that start with `program` (a pattern), and their words."""
    fences = re.findall(r"^```\w*\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text_of(page))
    for line in (*(line.partition(" # ")[0] for fence in fences for line in fence.splitlines()), *spans):
        for command in re.split(r"\s(?:\||&&|[<>]) ?", line):
            if found := re.match(rf"\s*((?:[A-Z_]+=\S+ )*(?:taskset \S+ \S+ )?){program}", command):
                yield command.strip(), shlex.split(command[found.end() :])


def test_documented_commands_have_the_arguments_that_the_commands_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)  # parse, and run nothing
    tried, wrong = 0, list[str]()
    for page in USER_PAGES:
        for command, words in documented(page, "localdflash "):
            if not words or words[0] not in COMMANDS:
                continue
            tried += 1
            try:
                cli.main([word.partition("|")[0] for word in words], "localdflash", standalone_mode=False)
            except click.UsageError as error:
                named = len(words) < 3 and isinstance(error, (NoArgsIsHelpError, click.MissingParameter))  # in prose
                if not named and "…" not in words and "does not exist" not in error.format_message():
                    wrong.append(f"{page}: {command}: {error.format_message()}")
    assert wrong == []
    assert tried > 60


def options_of(script: Path) -> tuple[set[str], set[str]]:
    """Return the options of a script's parser and those that are required, as written in its source."""
    known, required = {"--help"}, set[str]()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            name = str(node.args[0].value) if isinstance(node.args[0], ast.Constant) else ""
            needed = name.startswith("--") and any(keyword.arg == "required" for keyword in node.keywords)
            known.add(name)
            required |= {name} if needed else set()
            required |= {"a positional"} if name and not name.startswith("-") and not _is_optional(node) else set()
    return known, required


def _is_optional(call: ast.Call) -> bool:
    return any(
        k.arg == "nargs" and isinstance(k.value, ast.Constant) and k.value.value in ("?", "*") for k in call.keywords
    )


def test_documented_scripts_get_the_options_that_they_need() -> None:
    tried, wrong = 0, list[str]()
    for page in USER_PAGES:
        for command, words in documented(page, r"python (?:-P )?(?=lab/scripts/)"):
            known, required = options_of(ROOT / words[0])
            given = {word for word in words if word.startswith("--")}
            if words[1:] and not words[1].startswith("-"):
                required.discard("a positional")
            tried += 1
            if "…" not in words and (required - given or ("" not in known and given - known)):
                wrong.append(f"{page}: {command}: missing {required - given}, unknown {given - known}")
    assert wrong == []
    assert tried > 20


def test_every_script_answers_help_before_it_runs() -> None:
    scripts = [path for path in (ROOT / "lab").rglob("*.py") if "prompts" not in path.parts]
    started = {path: text for path in scripts if '__name__ == "__main__"' in (text := path.read_text("utf-8"))}
    assert len(started) > 30
    silent = [path for path, text in started.items() if ".parse_args(" not in text and path.name != "jail.py"]
    assert silent == []  # jail.py runs in a process of its own, which the sandbox starts


def test_tables_of_measured_numbers_are_up_to_date() -> None:
    found = 0
    for page in tables.PAGES:
        text = text_of(page)
        found += len(tables.PLACE.findall(text))
        assert tables.render_tables(text) == text, f"{page}: run PYTHONPATH=. python -P lab/scripts/tables.py"
    assert found > len(tables.TABLES)  # the chat's table stands in the README too


def test_every_package_imports_only_from_packages_above_it_in_the_table() -> None:
    first_cells = re.findall(r"^\| (`[^|]*) \|", text_of("docs/architecture.md"), re.MULTILINE)
    order = [name for cell in first_cells for name in re.findall(r"`(\w+)/`", cell) if name != "editors"]
    package = ROOT / "localdflash"
    there = {folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()}
    assert set(order) == there | {*BESIDE}
    for at, name in enumerate(order):
        folder = package / name if name in there else ROOT / name
        for file in folder.rglob("*.py"):
            if "prompts" not in file.parts:
                imported = set(IMPORT.findall(file.read_text(encoding="utf-8")))
                assert imported <= {*order[: at + 1], "__version__"}, file.relative_to(ROOT)


def test_modules_have_no_import_cycles() -> None:
    folders = {"localdflash": ROOT / "localdflash", **{f"localdflash.{name}": ROOT / name for name in BESIDE}}
    files = {
        ".".join((package, *file.relative_to(folder).with_suffix("").parts)): file
        for package, folder in folders.items()
        for file in folder.rglob("*.py")
        if file.name != "__init__.py" and "prompts" not in file.parts
    }
    imports = dict[str, set[str]]()
    for module, file in files.items():
        found = set[str]()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):  # inside functions, too
            if isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        imports[module] = (found & files.keys()) - {module}
    TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def test_every_name_in_the_walk_of_a_token_exists() -> None:
    walk = text_of("docs/architecture.md").partition("## The walk of a token id")[2].partition("```")[2]
    stations = re.findall(r"((?:[a-z]\w*/)+\w+(?:\.h)?) ([A-Za-z_.]+(?:, \w+)*)", walk)
    assert len(stations) > 20
    there = walk.partition("back ")[0]
    assert there.count("->") - there.count("(socket)") <= 22 + 1  # the daemon's first file comes after the socket
    for place, names in stations:
        file = ROOT / place if place.endswith(".h") else ROOT / "localdflash" / f"{place}.py"
        code = file.read_text(encoding="utf-8")
        assert all(re.search(rf"\b{name}\b", code) for name in re.split(r"[., ]+", names)), (place, names)
