"""The registry claims what tests have run, no less and no more; the table of docs/models.md is made of it."""

import ast
from itertools import chain

import pytest

from localdflash.models.registry.pair_entry import PairEntry
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

PAIRS = read_pairs(ROOT / "models.toml", ROOT / "localdflash")
NAMES = chain(*(tests.values() for tests in (*DRAFTERS.values(), *TARGETS.values(), *OWN_WEIGHTS.values())))


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_the_tests_that_are_named_are_there(name: str) -> None:
    file, function = name.split("::")
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    assert function in {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_ran_is_what_a_test_runs(pair: PairEntry) -> None:
    tests = runs_of(pair)
    assert set(pair.ran) == tests.keys() - set(PARTS)
    assert set(pair.by_parts) == tests.keys() & set(PARTS)
    assert pair.ran_with == (("its own weights" if pair.id in OWN_WEIGHTS else "random weights") if tests else None)
    if pair.drafter:
        drafters = drafters_of(pair)
        assert set(pair.drafter.ran) == drafters.keys() - set(PARTS)
        assert set(pair.drafter.by_parts) == drafters.keys() & set(PARTS)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_backend_is_named_that_ran_the_architecture(pair: PairEntry) -> None:
    assert pair.ran, "a pair whose architecture nothing ran is no row of the registry"
    assert pair.backends
    assert set(pair.backends) <= {*pair.ran, *pair.by_parts}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_facts_come_from_what_was_read(pair: PairEntry) -> None:
    drafter = pair.drafter
    if drafter and drafter.repository:
        assert (drafter.block_size is not None) == (drafter.taps is not None) == ("config" in pair.read)
    else:
        assert "target" in pair.read


def test_the_page_has_the_table_of_the_registry() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with(table()), "run `python -m tests.support.what_ran`"
