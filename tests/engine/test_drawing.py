"""Drafts that are drawn: what is committed follows the target's distribution, and would not by rules that are near."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from localdflash.engine import drawing, host_pair
from localdflash.engine.accept import accept
from localdflash.engine.controller import Controller
from localdflash.engine.draft import Chances, Draft
from localdflash.engine.drawing import above, nodes_to_verify, take_or_correct
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Draw
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from tests.support.guessing import Eager

Table = NDArray[np.float32]  # [V, V, V], logits behind two tokens
Outcome = tuple[int, ...]
Make = Callable[..., Any]

V = 4
PROMPT = [2, 1]
TOKENS = 3  # of an outcome: V ** TOKENS of them
DRAWS = 2000
LEAST = 0.001  # of right rules, of which there are many tests here
TARGET, DRAFTER = (np.random.default_rng(seed).normal(0, 1.2, (V,) * 3).astype(np.float32) for seed in (0, 1))
PARAMS = [
    SamplingParams(1.0, seed=3),
    SamplingParams(0.5, seed=3),
    SamplingParams(1.0, top_p=0.8, seed=3),
    SamplingParams(0.5, top_p=0.8, seed=3),
]


def probabilities(scores: Table, params: SamplingParams, allowed: Sequence[int] = range(V)) -> dict[int, float]:
    """Token -> probability, by temperature and top-p among those that are allowed."""
    weights = {token: np.exp(float(scores[token]) / params.temperature) for token in allowed}
    kept: dict[int, float] = {}
    for token in sorted(weights, key=lambda token: -weights[token]):
        if sum(kept.values()) < params.top_p:
            kept[token] = weights[token] / sum(weights.values())
    return {token: p / sum(kept.values()) for token, p in kept.items()}


def expected(params: SamplingParams, allowed: Sequence[int] = range(V)) -> dict[Outcome, float]:
    """The probability of each continuation of PROMPT, by enumeration."""
    found: dict[Outcome, float] = {}
    for outcome in itertools.product(range(V), repeat=TOKENS):
        ids, p = list(PROMPT), 1.0
        for token in outcome:
            p *= probabilities(TARGET[ids[-2], ids[-1]], params, allowed).get(token, 0.0)
            ids.append(token)
        if p:
            found[outcome] = p
    return found


def p_value(draw: Callable[[], Sequence[int]], wanted: dict[Outcome, float]) -> float:
    """Of the χ² test of DRAWS outcomes; those expected less than five times are counted together."""
    counts = Counter(tuple(draw()) for _ in range(DRAWS))
    if not counts.keys() <= wanted.keys():
        return 0.0
    common = [outcome for outcome, p in wanted.items() if p * DRAWS >= 5]
    seen, due = [counts[outcome] for outcome in common], [wanted[outcome] * DRAWS for outcome in common]
    if DRAWS - sum(due) > 1e-6:
        seen, due = [*seen, DRAWS - sum(seen)], [*due, DRAWS - sum(due)]
    return float(chisquare(seen, due).pvalue)


def drafted(draw: Draw, ids: Sequence[int], nodes: int) -> Draft:
    """A draft that a drafter with a true conditional draws."""
    ids, tokens, chances = list(ids), list[int](), list[Chances]()
    for _ in range(nodes):
        index, chance = draw(DRAFTER[ids[-2] if len(ids) > 1 else 0, ids[-1]], np.arange(V))
        ids.append(index)
        tokens.append(index)
        chances.append(chance)
    return Draft("drawn", tokens, [float(chance.probabilities.max()) for chance in chances], chances)


def walk(sampler: Sampler, nodes: int, draw: Draw | None = None) -> list[int]:
    """The first tokens behind PROMPT, by steps of so many nodes."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + TOKENS:
        draft = drafted(draw or sampler.propose, ids, nodes)
        path = [*ids, *draft.tokens]
        logits = np.stack([TARGET[path[i - 1], path[i]] for i in range(len(ids) - 1, len(path))])
        ids += accept(draft, logits, sampler, ids, 99, frozenset())
    return ids[len(PROMPT) :][:TOKENS]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_what_is_committed_follows_the_target_at_every_position(params: SamplingParams, nodes: int) -> None:
    sampler = Sampler(params)
    assert p_value(lambda: walk(sampler, nodes), expected(params)) > LEAST


@pytest.mark.parametrize("params", PARAMS)
def test_independent_slots_are_a_distribution_too(params: SamplingParams) -> None:
    """A plain drafter's slots know nothing of each other, so that q of a slot is the same behind any token."""
    sampler = Sampler(params)

    def by_slot(ids: Sequence[int]) -> Draft:
        chosen = [sampler.propose(DRAFTER[slot, 0], np.arange(V)) for slot in range(3)]
        return Draft("drawn", [token for token, _ in chosen], [0.5] * 3, [chance for _, chance in chosen])

    def one() -> list[int]:
        draft = by_slot(PROMPT)
        path = [*PROMPT, *draft.tokens]
        logits = np.stack([TARGET[path[i - 1], path[i]] for i in range(1, len(path))])
        committed = accept(draft, logits, sampler, PROMPT, TOKENS, frozenset())
        while len(committed) < TOKENS:
            ids = [*PROMPT, *committed]
            committed.append(sampler.draw(TARGET[ids[-2], ids[-1]], ids))
        return committed

    assert p_value(one, expected(params)) > LEAST


def test_more_is_taken_than_of_likeliest_tokens() -> None:
    """What the rule is for: it takes 1 less the total variation of p and q, the rule of equals p of q's best."""
    params = SamplingParams(1.0, seed=4)
    p, q = probabilities(TARGET[2, 1], params), probabilities(DRAFTER[2, 1], params)
    sampler, taken = Sampler(params), 0
    for _ in range(DRAWS):
        token, chance = sampler.propose(DRAFTER[2, 1], np.arange(V))
        taken += sampler.draw(TARGET[2, 1], [], token, chance) == token
    assert taken / DRAWS == pytest.approx(sum(min(p[token], q[token]) for token in range(V)), abs=0.04)


# Rules that are near, and wrong


def always_from_p(token: int, drawn_from: Chances, wanted: Chances, random: np.random.Generator) -> int:
    """What is not taken is drawn as if nothing had been drafted."""
    if random.random() * drawn_from.of(token) < wanted.of(token):
        return token
    return int(wanted.tokens[drawing.draw_from(wanted.probabilities, random)])


def by_p_alone(token: int, drawn_from: Chances, wanted: Chances, random: np.random.Generator) -> int:
    """q is left out where it is taken."""
    if random.random() < wanted.of(token):
        return token
    return int(wanted.tokens[drawing.draw_from(above(wanted, drawn_from), random)])


def by_a_fifth(token: int, drawn_from: Chances, wanted: Chances, random: np.random.Generator) -> int:
    """A little is forgiven, as by thresholds that engines offer."""
    if random.random() * drawn_from.of(token) < 1.2 * wanted.of(token):
        return token
    return take_or_correct(token, drawn_from, wanted, random)


@pytest.mark.parametrize("rule", [always_from_p, by_p_alone, by_a_fifth])
@pytest.mark.parametrize("params", PARAMS[:3])
def test_the_statistical_test_finds_a_wrong_rule(
    rule: Callable[..., int], params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.engine.sampling.take_or_correct", rule)
    sampler = Sampler(params)
    assert p_value(lambda: walk(sampler, 2), expected(params)) < 1e-4


class Shared:
    """Random numbers that a draft uses, and its token once more: what one stream at one place would give."""

    def __init__(self, fresh: bool, used: list[float]) -> None:
        self._fresh, self._used, self._random = fresh, used, np.random.default_rng(5 + fresh)

    def random(self) -> float:
        if not self._fresh and self._used:
            return self._used.pop()
        number = float(self._random.random())
        if self._fresh:
            self._used[:] = [number] * 2
        return number


def test_the_statistical_test_finds_random_numbers_that_are_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, used = Sampler(PARAMS[0]), list[float]()
    monkeypatch.setattr(sampler, "_drafting", Shared(True, used))
    monkeypatch.setattr(sampler, "_random", Shared(False, used))
    assert p_value(lambda: walk(sampler, 1), expected(PARAMS[0])) < 1e-4


# In the pair


class Drawer:
    """See `Drawing`: draws from a table; how sure it says it is depends on the token before, or on the one drawn."""

    name, is_model, autoregressive, waiting, draws, longest = "drawn", True, False, 0, True, 4

    def __init__(self) -> None:
        self.seen: list[int] = []

    def observe(self, ids: Sequence[int], taps: Any) -> None:
        self.seen += ids

    def propose(self, anchor: int, limit: int) -> Draft:
        return Draft(self.name, [0] * limit, [0.5] * limit)

    def propose_drawn(self, anchor: int, limit: int, draw: Draw) -> Draft:
        return drafted(draw, [*self.seen, anchor], limit)

    def rollback(self, length: int) -> None:
        del self.seen[length:]

    def save(self) -> bytes:
        return b""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        self.seen = list(ids)


class Choosy(Controller):
    """Verifies as many nodes as say that they are sure, beginning with the first."""

    SURE = 0.6

    def looks(self) -> bool:
        return True

    def promise(self, drafter: str, limit: int) -> float:
        return 1e12

    def best_prefix(self, draft: Draft) -> tuple[int, float]:
        sure = itertools.takewhile(lambda confidence: confidence > self.SURE, draft.confidence)
        return len(list(sure)), 1e9


def answers(pair: HostPair, params: SamplingParams, constraint: Any = None) -> Callable[[], list[int]]:
    sampler = Sampler(params, constraint)

    def one() -> list[int]:
        if constraint:
            constraint.begin()
        pair.forget()
        pair.prefill(PROMPT)
        tokens: list[int] = []
        while len(tokens) < TOKENS:
            tokens += pair.step(sampler, TOKENS - len(tokens)).tokens
        return tokens

    return one


@pytest.fixture
def pair_of(fake_target: Make) -> Callable[..., HostPair]:
    def make(controller: Controller, *others: Any) -> HostPair:
        pair = HostPair(fake_target(TARGET), [*others, Drawer()], controller)
        pair.draws = True
        return pair

    return make


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("controller", [Eager, Choosy])
def test_a_pair_that_draws_its_drafts(
    pair_of: Callable[..., HostPair], params: SamplingParams, controller: type[Controller]
) -> None:
    pair = pair_of(controller({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    assert pair.can_draw
    assert p_value(answers(pair, params), expected(params)) > LEAST


@pytest.mark.parametrize("params", PARAMS[:2])
def test_beside_copies_and_with_costs_as_they_are(
    pair_of: Callable[..., HostPair], fake_drafter: Make, params: SamplingParams
) -> None:
    def copy(ids: list[int], limit: int) -> Any:
        count = len(ids) % 3
        return [ids[-1]] * count, [0.5] * count

    pair = pair_of(Controller({1: 1.0, 2: 1.05, 8: 1.3}, {"drawn": 0.1}), fake_drafter("copied", copy, False))
    assert p_value(answers(pair, params), expected(params)) > LEAST


def test_the_statistical_test_finds_lengths_that_look_at_what_was_drawn(
    pair_of: Callable[..., HostPair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake that `nodes_to_verify` avoids: the confidence of a node is known only with the token before it."""

    def looking_back(controller: Controller, draft: Draft, rate: float) -> int:
        return len(draft) if draft.confidence[-1] > Choosy.SURE else 0

    monkeypatch.setattr(host_pair, "nodes_to_verify", looking_back)
    pair = pair_of(Choosy({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    assert p_value(answers(pair, PARAMS[0]), expected(PARAMS[0])) < 1e-4


def test_a_node_is_counted_by_what_was_known_before_it_was_drawn() -> None:
    controller = Choosy({1: 1.0}, {})
    chances = [Chances(np.arange(1), np.ones(1))] * 4
    draft = Draft("drawn", [0] * 4, [0.9, 0.7, 0.2, 0.9], chances)
    assert nodes_to_verify(controller, draft, 0.0) == 2
    assert nodes_to_verify(controller, draft.first(1), 0.0) == 1
    assert nodes_to_verify(controller, Draft("drawn", [0] * 2, [0.2, 0.9], chances[:2]), 0.0) == 0
    assert nodes_to_verify(controller, draft, 2e9) == 0, "a copy promises more"


class Odd:
    """A grammar: token 3 may not come."""

    conditional = False
    allowed_tokens = (0, 1, 2)

    def begin(self) -> None:
        """Nothing is remembered."""

    def mask(self) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = np.arange(V) != 3
        return mask

    def advance(self, token: int) -> None:
        assert token != 3

    def allowed(self, tokens: Sequence[int]) -> int:
        return len(list(itertools.takewhile(lambda token: token != 3, tokens)))

    def forced(self) -> Sequence[int]:
        return ()


@pytest.mark.parametrize("params", PARAMS)
def test_under_a_grammar(pair_of: Callable[..., HostPair], params: SamplingParams) -> None:
    pair = pair_of(Eager({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    assert p_value(answers(pair, params, Odd()), expected(params, Odd.allowed_tokens)) > LEAST


def test_the_statistical_test_finds_drafts_cut_where_the_grammar_ends_them(
    pair_of: Callable[..., HostPair],
) -> None:
    class Cut(Odd):
        """Says that one less may come, as if a drawn draft could be cut like another."""

        def allowed(self, tokens: Sequence[int]) -> int:
            return super().allowed(tokens) - 1

    pair = pair_of(Eager({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    assert p_value(answers(pair, PARAMS[0], Cut()), expected(PARAMS[0], Odd.allowed_tokens)) < 1e-4


# Sampler and pair in small


def test_drafts_have_a_stream_of_their_own() -> None:
    plain, drafting = Sampler(SamplingParams(1.0, seed=9)), Sampler(SamplingParams(1.0, seed=9))
    drawn = []
    for _ in range(20):
        drawn.append(drafting.propose(np.zeros(1000, np.float32), np.arange(1000))[0])
        assert drafting.draw(np.zeros(1000, np.float32), []) == plain.draw(np.zeros(1000, np.float32), [])
    again = Sampler(SamplingParams(1.0, seed=9))
    assert [again.propose(np.zeros(1000, np.float32), np.arange(1000))[0] for _ in range(20)] == drawn
    assert len(set(drawn)) > 10


def test_chances_are_of_the_drafters_own_tokens() -> None:
    sampler = Sampler(SamplingParams(1.0, top_k=2, seed=1))
    index, chance = sampler.propose(np.array([0.0, 5.0, 4.0], np.float32), np.array([70, 8, 9]))
    assert sorted(chance.tokens.tolist()) == [8, 9]
    assert chance.of(70) == 0.0
    assert chance.of(8) == pytest.approx(1 / (1 + np.exp(-1)))
    assert index in (1, 2)


def test_equal_distributions_take_everything() -> None:
    same = Chances(np.array([3, 1]), np.array([0.7, 0.3]))
    random = np.random.default_rng(0)
    assert all(take_or_correct(token, same, same, random) == token for token in (1, 3) for _ in range(200))
    rounded = Chances(same.tokens, same.probabilities + np.array([1e-17, 1e-16]))
    assert not above(same, rounded).any()


def test_greedy_answers_are_not_drawn(pair_of: Callable[..., HostPair]) -> None:
    pair = pair_of(Eager({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    pair.prefill(PROMPT)
    step = pair.step(Sampler(SamplingParams()), 9)
    assert step.tokens[0] == TARGET[2, 1].argmax()


def test_a_pair_draws_only_where_it_is_asked_to(pair_of: Callable[..., HostPair], fake_target: Make) -> None:
    params, pair = SamplingParams(1.0, seed=5), pair_of(Eager({1: 1.0, 2: 1.0}, {"drawn": 0.0}))
    pair.draws = False
    plain = HostPair(fake_target(TARGET))
    assert not plain.can_draw
    assert [answers(pair, params)() for _ in range(3)] == [answers(plain, params)() for _ in range(3)]
