"""Token healing, and plans of completions: a large vocabulary holds up neither the first key nor the end of a pair."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from localdflash.code.fim import infill_plan
from localdflash.code.fim.healing import Healing, Spellings, unfinished_word
from localdflash.code.fim.infill_plan import InfillPlan, InfillPlanner
from localdflash.code.fim.prompt import Gap
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.text.tokenizer import Tokenizer


@pytest.fixture
def loaded() -> Iterator[LoadedPair]:
    with LoadedPair(Options(pair="embedded", threads=1, draft=False, backend="llama.cpp")) as pair:
        yield pair


def plan_for(planner: InfillPlanner, min_probability: float) -> InfillPlan:
    place = Gap("a.py", "python", "x = se", "", "\n")
    return planner.plan(place, max_tokens=8, params=SamplingParams(), min_probability=min_probability)


def test_completions_are_healed_once_the_spellings_are_there(
    loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def slow(tokenizer: Tokenizer, size: int) -> Spellings:
        assert go.wait(30)
        return Spellings(tokenizer, size)

    monkeypatch.setattr(infill_plan, "Spellings", slow)
    made = InfillPlanner(loaded, patience=0.001)
    assert plan_for(made, 0.25).word == ""
    assert plan_for(made, 0.25).requests[0].constraint is None
    closing = threading.Thread(target=loaded.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()  # it waits for who reads the vocabulary
    go.set()
    closing.join(30)
    assert not closing.is_alive()


@pytest.mark.parametrize(("heals", "temperatures"), [(True, [0.0, 0.0, 0.0]), (False, [0.0, 0.8, 0.8])])
def test_choices_differ_in_their_first_token_or_else_by_chance(
    loaded: LoadedPair, heals: bool, temperatures: list[float]
) -> None:
    place, greedy = Gap("a.py", "python", "import os\nimport se", "", "\n"), SamplingParams(temperature=0.0)
    planner = InfillPlanner(loaded, patience=None)
    requests = planner.plan(place, max_tokens=8, params=greedy, count=3, heals=heals).requests
    assert [request.params.temperature for request in requests[:3]] == temperatures
    assert len({request.params.seed for request in requests}) == (1 if heals else 3)
    assert all((request.constraint is not None) == heals for request in requests)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("    retu", "retu"),
        ("x = com", " com"),
        ("x = ", " "),
        ("def f(a):", "):"),
        ("    ", ""),
        ('    """', '"""'),
        ("x = 1", ""),
        ("", ""),
        ("naïv", "naïv"),
    ],
)
def test_the_word_at_the_cursor(line: str, word: str) -> None:
    assert unfinished_word(line) == word


def test_any_way_of_drawing_spells_the_word(tokenizer: Tokenizer) -> None:
    random, spellings = np.random.default_rng(0), Spellings(tokenizer, tokenizer.vocab_size)
    for _ in range(50):
        healing, drawn = Healing(spellings, " return"), list[int]()
        while (mask := healing.mask()) is not None:
            drawn.append(int(random.choice(np.flatnonzero(mask))))
            healing.advance(drawn[-1])
        assert tokenizer.spell(drawn).startswith(b" return")
        assert Healing(spellings, " return").count_allowed([*drawn, 1, 2]) == len(drawn) + 2
        assert Healing(spellings, " yield").count_allowed(drawn) < len(drawn)
