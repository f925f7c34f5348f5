"""Small pairs on the CPU engine."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.tiny_models import EXPERTS, SHAPE

DENSE = replace(SHAPE, hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2)
SHAPES: dict[str, tuple[DecoderConfig, str]] = {
    "Q8_0": (DENSE, "Q8_0"),
    "Q4_0": (replace(DENSE, vocab_size=157), "Q4_0"),
    "Q4_1": (replace(DENSE, vocab_size=163, hidden_size=192, intermediate_size=320, num_attention_heads=6), "Q4_1"),
    "mixture": (replace(DENSE, **EXPERTS), "Q8_0"),
}
needs_library = pytest.mark.skipif(bool(cpu_library.why_unavailable()), reason=cpu_library.why_unavailable())


@pytest.fixture
def new_team() -> Iterator[Callable[..., ThreadPool]]:
    """Make thread pools, which end with the test."""
    pools: list[ThreadPool] = []

    def make(threads: int = 2, instruction_set: str = "") -> ThreadPool:
        pools.append(ThreadPool(threads, (), instruction_set))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
