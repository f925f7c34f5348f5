"""Decoding modes of the chat benchmark; all modes share two loaded models.

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
from localdflash.lab.bench.decoding_modes import FullDraftController
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

PLAIN, DRAFTING, DFLASH, LOOKUP, FORCED, LLAMA = "plain", "drafting", "dflash", "lookup", "forced", "llama.cpp"


class Hosts(NamedTuple):
    """The loaded pair, and a pair of a second copy of its target without drafters; only for pairs not on CUDA."""

    drafting: HostPair
    plain: HostPair


@dataclass(frozen=True)
class ChatModes:
    """Pairs by mode name, `plain` first; `hosts` is None on the CUDA engine."""

    pairs: dict[str, Pair]
    hosts: Hosts | None = None

    @property
    def has_model(self) -> bool:
        """Return whether the pair has a model drafter."""
        return FORCED in self.pairs


@contextmanager
def open_chat_modes(loaded: LoadedPair, options: Options) -> Iterator[ChatModes]:
    """Yield the modes of a pair that was loaded with `options`."""
    with decoding_modes.open_modes(loaded, options) as modes:
        pairs: dict[str, Pair] = {PLAIN: modes.plain, DRAFTING: loaded.pair}
        if loaded.host_pair is None:
            if modes.dflash_alone:
                pairs[FORCED] = modes.dflash_alone
            yield ChatModes(pairs)
            return
        assert isinstance(modes.plain, HostPair)
        pairs |= _single_drafter_modes(loaded.host_pair, modes.plain.target, options)
        if modes.llama:
            pairs[LLAMA] = modes.llama
        yield ChatModes(pairs, Hosts(loaded.host_pair, modes.plain))


def _single_drafter_modes(drafting: HostPair, plain: Target, options: Options) -> dict[str, Pair]:
    """Return the modes that use one drafter; none for a pair without DFlash.

    DFlash needs the target that computes hidden-state features; lookup runs on the faster target without features.
    """
    models = [drafter for drafter in drafting.drafters if drafter.is_model]
    if not models:
        return {}

    def single_drafter_pair(target: Target, drafter: Drafter) -> HostPair:
        return HostPair(target, [drafter], (options.costs or calibrate)(target, [drafter]))

    return {
        DFLASH: single_drafter_pair(drafting.target, models[0]),
        LOOKUP: single_drafter_pair(plain, LookupDrafter()),
        FORCED: HostPair(drafting.target, models, FullDraftController(models[0].name)),
    }


@contextmanager
def replaced_controller(pair: HostPair, controller: Controller) -> Iterator[HostPair]:
    """Replace the pair's controller temporarily."""
    original, pair.controller = pair.controller, controller
    try:
        yield pair
    finally:
        pair.controller = original
