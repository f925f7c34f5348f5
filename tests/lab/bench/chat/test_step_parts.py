"""Time of a step by part."""

import time
from collections.abc import Sequence

from localdflash.engine.draft import Draft
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import TargetFeatures
from localdflash.engine.stats import Stats
from localdflash.lab.bench.chat.step_parts import measure_parts
from tests.support.scripted_pair import ScriptedTarget

BATCH_SECONDS = 0.002


class SlowTarget(ScriptedTarget):
    """Takes `BATCH_SECONDS` for a verify batch."""

    def verify_greedy(self, anchor: int, draft: Draft) -> tuple[Sequence[int], TargetFeatures | None]:
        time.sleep(BATCH_SECONDS)
        verification = self.verify(anchor, draft)
        return verification.logits.argmax(1).tolist(), None


def test_verify_batches_count_as_verification() -> None:
    pair = HostPair(SlowTarget(8, [1, 2, 3]))

    def answer() -> Stats:
        request = Request([4, 5], max_tokens=3)
        for _ in generate(pair, request):
            pass
        return request.stats

    assert measure_parts(pair, answer)["verify"] >= BATCH_SECONDS * 1e3
