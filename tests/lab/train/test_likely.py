"""What a target held for likely."""

import numpy as np

from localdflash.lab.train.likely import COUNT, likely


def test_the_best_ids_and_their_shares_among_themselves() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32) * 4
    found = likely(logits)
    for row, best in zip(logits.astype(np.float64), found, strict=True):
        order = np.argsort(-row)[:COUNT]
        assert best["id"].tolist() == order.tolist()
        shares = np.exp(row[order]) / np.exp(row[order]).sum()
        assert np.abs(best["share"] - shares).max() < 1e-3


def test_a_vocabulary_of_three() -> None:
    best = likely(np.log(np.array([[0.2, 0.5, 0.3]], np.float32)))[0]
    assert best["id"][:3].tolist() == [1, 2, 0]
    assert np.allclose(best["share"][:4], [0.5, 0.3, 0.2, 0], atol=1e-3)
