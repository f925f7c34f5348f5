"""What a target held for likely: the best ids of a row of logits, and their shares among themselves.

A drafter that learns from them learns from a few hundred thousand tokens what hard labels would need millions for
(knowledge distillation, arXiv 1503.02531; for drafters DistillSpec, arXiv 2310.08461).
"""

import numpy as np
import torch
from numpy.typing import NDArray

COUNT = 16  # ids that are kept of a row
LIKELY = np.dtype([("id", "<u4"), ("share", "<f2")])


def likely(logits: NDArray[np.float32]) -> NDArray[np.void]:
    """LIKELY [N, COUNT], the best first, of logits [N, vocabulary]; fewer where the vocabulary has fewer."""
    best = torch.topk(torch.from_numpy(logits), min(COUNT, logits.shape[-1]))
    found = np.zeros((len(logits), COUNT), LIKELY)
    found["id"][:, : best.indices.shape[-1]] = best.indices.numpy()
    found["share"][:, : best.indices.shape[-1]] = best.values.softmax(-1).numpy()
    return found
