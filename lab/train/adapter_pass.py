"""Several examples side by side in one pass: ids in one row, and the positions whose next id is learned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localdflash.lab.train.adapter_data import ExampleIds

CHAT_WEIGHT = 0.2  # of an answer's id: answers are long, middles short
PASS_TOKENS = 768  # of a pass, unless one example has more: its activations stay in the caches


@dataclass(frozen=True)
class Pass:
    """The ids [T] of examples with these lengths, and what N of them should be followed by."""

    ids: Tensor  # [T]
    positions: Tensor  # [T], from 0 in each example
    lengths: Sequence[int]
    places: Tensor  # [N]
    labels: Tensor  # [N]
    weights: Tensor  # [N]
    middle: Tensor  # [N], whether the label is a middle's

    @classmethod
    def of(cls, examples: Sequence[ExampleIds]) -> Self:
        """A middle's ids weigh 1, a prompt's nothing."""
        weights = np.concatenate([_weights(example) for example in examples])
        middle = np.concatenate([_is_middle(example) for example in examples])
        ids = np.concatenate([example.ids for example in examples])
        positions = np.concatenate([np.arange(len(example.ids)) for example in examples])
        places = np.flatnonzero(weights)
        lengths = [len(example.ids) for example in examples]
        tensor = torch.from_numpy
        learned = map(tensor, (places, np.roll(ids, -1)[places], weights[places], middle[places]))
        return cls(tensor(ids), tensor(positions), lengths, *learned)


def _weights(example: ExampleIds) -> NDArray[np.float32]:
    """The weight of each position's next id [T]; nothing comes after the last."""
    weights = np.zeros(len(example.ids), np.float32)
    weights[example.prompt - 1 : -1] = CHAT_WEIGHT if example.kind == "chat" else 1.0
    return weights


def _is_middle(example: ExampleIds) -> NDArray[np.bool_]:
    """Whether each position's next id is a middle's [T]."""
    return (np.arange(1, len(example.ids) + 1) >= example.prompt) & (example.kind != "chat")


def packed(examples: Sequence[ExampleIds]) -> Iterator[list[ExampleIds]]:
    """The examples in their order, cut into groups of at most `PASS_TOKENS`."""
    group, count = list[ExampleIds](), 0
    for example in examples:
        if group and count + len(example.ids) > PASS_TOKENS:
            yield group
            group, count = [], 0
        group.append(example)
        count += len(example.ids)
    if group:
        yield group
