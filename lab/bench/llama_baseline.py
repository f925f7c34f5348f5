"""Autoregressive decoding by llama.cpp: the baseline that drafting has to beat on every backend."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.base.extras import missing_module
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.loading.load_pair import LoadedPair


@contextmanager
def llama_baseline(loaded: LoadedPair) -> Iterator[Pair | None]:
    """Yield a llama.cpp pair with the target, context, threads and GPU of `loaded`; None if llama.cpp cannot run it."""
    if missing_module("llama"):
        yield None
        return
    from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
    from localdflash.backends.llamacpp.placement import PROCESSOR
    from localdflash.lab.bench.single_token_target import SingleTokenTarget

    ours = loaded.host_pair.target if loaded.host_pair else None
    placement = ours.placement if isinstance(ours, LlamaCppTarget) else PROCESSOR
    try:
        target = SingleTokenTarget(loaded.files.target, loaded.context, loaded.options.threads, placement)
    except (ModelError, OutOfMemory):
        yield None
        return
    with closing(target):
        yield HostPair(target)
