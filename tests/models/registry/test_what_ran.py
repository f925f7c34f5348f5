"""The registry claims exactly the backends that tests ran; the table of docs/models.md is generated from it."""

import ast
from itertools import chain

from localdflash.models.registry.registry import MODELS_FOLDER
from localdflash.models.registry.registry_file import read_pairs
from tests.support.what_ran import (
    DRAFTERS,
    OWN_WEIGHTS,
    PAGE,
    PARTS,
    ROOT,
    TARGETS,
    drafters_of,
    page_with,
    runs_of,
    table,
)

PAIRS = read_pairs(ROOT / "models.toml", MODELS_FOLDER)
NAMES = chain(*(tests.values() for tests in (*DRAFTERS.values(), *TARGETS.values(), *OWN_WEIGHTS.values())))


def test_named_tests_exist() -> None:
    for name in set(NAMES):
        file, function = name.split("::")
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        assert function in {node.name for node in body if isinstance(node, ast.FunctionDef)}, name


def test_the_registry_claims_what_tests_run() -> None:
    for pair in PAIRS.values():
        tests = runs_of(pair)
        assert set(pair.ran) == tests.keys() - set(PARTS), pair.id
        assert set(pair.by_parts) == tests.keys() & set(PARTS), pair.id
        assert pair.ran_with == (("its own weights" if pair.id in OWN_WEIGHTS else "random weights") if tests else None)
        if pair.drafter:
            drafters = drafters_of(pair)
            assert set(pair.drafter.ran) == drafters.keys() - set(PARTS), pair.id
            assert set(pair.drafter.by_parts) == drafters.keys() & set(PARTS), pair.id
        assert pair.ran, "a pair whose architecture nothing ran is no row of the registry"
        assert pair.backends
        assert set(pair.backends) <= {*pair.ran, *pair.by_parts}, pair.id


def test_the_page_has_the_table_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), "run `python -m tests.support.what_ran`"
