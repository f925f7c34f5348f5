"""Mutation testing of the core: change one operator or constant at a time, and count the changes that make a test fail.

`PYTHONPATH=. python -P lab/scripts/mutants.py [--each 12] [--only accept,gguf] [--json FILE]`. Mutants are sampled
with the file's name as seed, so equal sources have equal mutants. Files are changed in place and restored, so run it on
a checkout that nobody edits. The script stops if a file's tests fail without a mutant.
"""

import argparse
import ast
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from localdflash.lab import result_file

CORE = {  # source file -> the tests that should notice
    "localdflash/engine/accept.py": ["tests/engine/test_sampling.py", "tests/engine/test_lossless.py"],
    "localdflash/engine/controller.py": ["tests/engine/test_controller.py"],
    "localdflash/engine/sampling.py": ["tests/engine/test_sampling.py"],
    "localdflash/engine/lookup.py": ["tests/engine/test_lookup.py"],
    "localdflash/engine/scheduler.py": ["tests/engine/test_scheduler.py"],
    "localdflash/engine/prefix.py": ["tests/engine/test_prefix.py", "tests/engine/test_prefix_disk.py"],
    "localdflash/text/tokenizer.py": ["tests/text/test_tokenizer.py", "tests/text/test_gguf_vocabulary.py"],
    "localdflash/models/weights/gguf.py": ["tests/models/weights"],
    "localdflash/code/fim/stopping.py": ["tests/code/fim"],
    "localdflash/server/guard.py": ["tests/server/test_guard.py"],
}
TIMEOUT_SECONDS = 120  # a mutant whose tests take longer counts as noticed
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}


def mutations(tree: ast.AST) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Yield line, description and a function that changes `tree`, for every possible mutation of a module."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            new = SWAPS[type(node.ops[0])]()
            description = f"{type(node.ops[0]).__name__} -> {type(new).__name__}"
            yield line, description, partial(setattr, node, "ops", [new, *node.ops[1:]])
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
            new = SWAPS[type(node.op)]()
            yield line, f"{type(node.op).__name__} -> {type(new).__name__}", partial(setattr, node, "op", new)
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            test = ast.UnaryOp(ast.Not(), node.test)
            yield line, "condition negated", partial(setattr, node, "test", test)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield line, f"{node.value} -> {node.value + 1}", partial(setattr, node, "value", node.value + 1)


def is_noticed(tests: list[str]) -> bool:
    """Run the tests of a mutated file; return whether any fails."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def run(source: Path, tests: list[str], each: int) -> tuple[int, list[str]]:
    """Test up to `each` mutants of a file; return their number, and descriptions of those that no test noticed."""
    original = source.read_text(encoding="utf-8")
    if is_noticed(tests):
        raise SystemExit(f"{source}: its tests fail without a mutant; fix them first")
    all_numbers = range(sum(1 for _ in mutations(ast.parse(original))))
    numbers = sorted(random.Random(source.name).sample(all_numbers, min(each, len(all_numbers))))
    survivors = []
    try:
        for number in numbers:
            tree = ast.parse(original)
            line, description, change = list(mutations(tree))[number]
            change()
            source.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            if not is_noticed(tests):
                survivors.append(f"{source}:{line}: {description}")
    finally:
        source.write_text(original, encoding="utf-8")
    return len(numbers), survivors


def main() -> None:
    """Mutate the core and print the kill rate of each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    files, tested, alive = {}, 0, 0
    for name, tests in CORE.items():
        source = Path(name)
        if given.only and source.stem not in given.only.split(","):
            continue
        count, survivors = run(source, tests, given.each)
        tested, alive = tested + count, alive + len(survivors)
        files[name] = {"mutants": count, "killed": count - len(survivors), "survivors": survivors}
        print(f"{name}: {count - len(survivors)} of {count}", *survivors, sep="\n  ", flush=True)
    print(f"killed {tested - alive} of {tested}: {(tested - alive) / tested:.0%}")
    result_file.write(given.json, {"seed": "the file's name", "files": files})


if __name__ == "__main__":
    main()
