"""Checks that a backend is lossless: a token's logits do not depend on the rest of its batch."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import Target

Row = tuple[NDArray[np.float32], NDArray[np.float32] | None]  # logits and features of a token


def verify(target: Target, tokens: Sequence[int]) -> list[Row]:
    """Return copies of the logits and features of one verify batch."""
    seen = target.verify(tokens[0], Draft("test", list(tokens[1:]), [1.0] * (len(tokens) - 1)))
    taps = [None] * len(tokens) if seen.features is None else [row.copy() for row in seen.features]
    return [(logits.copy(), row) for logits, row in zip(seen.logits, taps, strict=True)]


def one_by_one(target: Target, tokens: Sequence[int]) -> list[Row]:
    """Return the rows of single-token batches, each kept."""
    rows = []
    for token in tokens:
        rows += verify(target, [token])
        target.keep(1)
    return rows


def same(a: Sequence[Row], b: Sequence[Row]) -> bool:
    """Return whether rows are bit-identical."""
    return all(
        np.array_equal(x, y) if x is not None and y is not None else x is y
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )


def fill(target: Target, ids: Sequence[int], chunk: int) -> None:
    """Read a prompt from its beginning, in chunks."""
    target.crop(0)
    start = 0
    while start < len(ids):
        count = min(chunk, target.max_width)
        target.extend(ids[start : start + count])
        start += count


def assert_lossless(
    target: Target,
    ids: Sequence[int],
    widths: Iterable[int],
    *,
    chunks: Iterable[int] = (1, 7),
    lengths: Iterable[int] = (0, 1, 15, 16, 17, 50),
) -> None:
    """Assert that batch widths, rejected drafts, prompt chunks, saved states and other texts change no bit.

    The last tokens of `ids`, as many as the largest width, are verified after the others.
    """
    widths = list(widths)
    prompt, tokens = list(ids[: -max(widths)]), list(ids[-max(widths) :])
    wrong = [abs(token - 1) for token in tokens]
    fill(target, prompt, target.max_width)
    single_rows = one_by_one(target, tokens)

    for width in widths:
        target.crop(len(prompt))
        if target.length != len(prompt):  # recurrent layers cannot roll back
            fill(target, prompt, target.max_width)
        accepted = width // 2 + 1  # number of accepted draft tokens
        batch = tokens[:accepted] + wrong[accepted:width]
        assert same(verify(target, batch)[:accepted], single_rows[:accepted]), width
        target.keep(accepted)
        if accepted < len(tokens):
            assert same(verify(target, tokens[accepted : accepted + 1]), single_rows[accepted : accepted + 1]), width

    for chunk in chunks:
        fill(target, prompt, chunk)
        assert same(verify(target, tokens[:1]), single_rows[:1]), chunk

    for length in lengths:
        fill(target, prompt[:length], target.max_width)
        state = target.save()
        expected = verify(target, tokens[:9])
        fill(target, prompt[::-1], target.max_width)
        target.load(state, length)
        assert target.length == length
        assert same(verify(target, tokens[:9]), expected), length

    target.crop(0)
    if target.assume_length(target.context // 2):
        target.verify(tokens[0], EMPTY_DRAFT)
        target.keep(0)
        fill(target, prompt, target.max_width)
        assert same(verify(target, tokens[:1]), single_rows[:1])
