"""Speed by context length."""

import pytest

from localdflash.engine.host_pair import HostPair
from localdflash.lab.bench.bench_run import PromptRun
from localdflash.lab.bench.chat import curve
from localdflash.lab.bench.chat.chat_modes import Hosts
from tests.support.scripted_pair import ScriptedTarget


def test_the_prefill_of_a_length_is_timed_from_a_cold_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cached = curve._run, list[int]()

    def recorded(pair: HostPair, ids: list[int], ends: frozenset[int]) -> PromptRun:
        cached.append(len(pair.ids))
        return run(pair, ids, ends)

    monkeypatch.setattr(curve, "_run", recorded)
    monkeypatch.setattr(curve, "ANSWER_TOKENS", 2)
    hosts = Hosts(HostPair(ScriptedTarget(8, [1, 2, 3])), HostPair(ScriptedTarget(8, [1, 2, 3])))
    for prompt in ([4, 5], [4, 5, 6]):  # a longer document begins with a shorter one
        curve._measure_length(hosts, [prompt], 256, frozenset())
    assert (cached[0], cached[4]) == (0, 0)
