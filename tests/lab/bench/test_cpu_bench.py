"""The scripts that measure the CPU engine: what they compute is right, on tiny models."""

import math

import pytest
import torch

from localdflash.lab.scripts import cpu_quality

# Quality


def test_differences_of_two_rows_by_hand() -> None:
    total = cpu_quality.Difference()
    wanted = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])  # 1/4 3/4, 1/2 1/2
    found = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])  # 1/2 1/2, 3/4 1/4
    total.add(wanted, found, [1])
    report = total.report()
    divergence = 0.25 * math.log(0.5) + 0.75 * math.log(1.5) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2.0)
    assert report["kl_nats"] == pytest.approx(divergence / 2, rel=1e-2)
    assert report["top1_agreement"] == 0.5  # of equals the first counts
    assert (report["perplexity"], report["perplexity_float32"]) == (2.0, pytest.approx(4 / 3, abs=1e-5))
    assert report["mean_abs_logprob_change"] == pytest.approx(math.log(1.5), rel=1e-2)
    assert report["relative_rms_of_logits"] == pytest.approx(math.sqrt(2.0), rel=1e-2)


# Kernels
