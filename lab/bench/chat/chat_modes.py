"""Decoding modes of the chat benchmark, over the memory of two loaded models.

`dflash` and `lookup` use one drafter alone; `forced` verifies DFlash's whole block in every step, whatever it costs.
Without a DFlash drafter there is no `dflash` and no `forced`, and `lookup` is `drafting`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, Pair, Target
from localdflash.lab.bench import decoding_modes
from localdflash.lab.bench.decoding_modes import Always
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

PLAIN, DRAFTING, DFLASH, LOOKUP, FORCED, LLAMA = "plain", "drafting", "dflash", "lookup", "forced", "llama.cpp"


class Hosts(NamedTuple):
    """Pair composed in Python, and the same target without drafters."""

    drafting: HostPair
    plain: HostPair


@dataclass(frozen=True)
class ChatWays:
    """Pairs by the names of their modes, `plain` first; `hosts` is None if pairs are not composed in Python."""

    pairs: dict[str, Pair]
    hosts: Hosts | None = None

    @property
    def has_model(self) -> bool:
        """Return whether a model drafts."""
        return FORCED in self.pairs


@contextmanager
def opened(loaded: LoadedPair, options: Options) -> Iterator[ChatWays]:
    """Yield the modes of a pair that was loaded with `options`."""
    with decoding_modes.opened(loaded, options) as ways:
        pairs: dict[str, Pair] = {PLAIN: ways.plain, DRAFTING: loaded.pair}
        if loaded.host is None:
            if ways.blocks:
                pairs[FORCED] = ways.blocks
            yield ChatWays(pairs)
            return
        assert isinstance(ways.plain, HostPair)
        pairs |= _single(loaded.host, ways.plain.target, options)
        if ways.llama:
            pairs[LLAMA] = ways.llama
        yield ChatWays(pairs, Hosts(loaded.host, ways.plain))


def _single(drafting: HostPair, plain: Target, options: Options) -> dict[str, Pair]:
    """Return the pair with one drafter: DFlash over the target with features, lookup over the one without."""
    models = [drafter for drafter in drafting.drafters if drafter.is_model]
    if not models:
        return {}

    def alone(target: Target, drafter: Drafter) -> HostPair:
        return HostPair(target, [drafter], (options.costs or calibrate)(target, [drafter]))

    return {
        DFLASH: alone(drafting.target, models[0]),
        LOOKUP: alone(plain, LookupDrafter()),
        FORCED: HostPair(drafting.target, models, Always(models[0].name)),
    }


@contextmanager
def steered(pair: HostPair, controller: Controller) -> Iterator[HostPair]:
    """Replace the pair's controller temporarily."""
    usual, pair.controller = pair.controller, controller
    try:
        yield pair
    finally:
        pair.controller = usual
