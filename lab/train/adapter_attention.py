"""Causal attention of several concatenated sequences: they are padded only inside torch's attention."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from localdflash.backends.reference.decoder import Attend


def attend_within(lengths: Sequence[int], device: torch.device) -> Attend:
    """Return an attention function for concatenated sequences of these lengths.

    A sequence's padding follows its tokens, which thus never attend to it.
    """
    count, longest = len(lengths), max(lengths)
    rows = torch.cat([torch.arange(length) + number * longest for number, length in enumerate(lengths)]).to(device)

    def pad(x: Tensor) -> Tensor:
        """Map [1, heads, T, hd] to [count, heads, longest, hd]."""
        padded = x.new_zeros(len(x[0]), count * longest, x.shape[-1]).index_copy(1, rows, x[0])
        return padded.unflatten(1, (count, longest)).transpose(0, 1)

    def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(pad(q), pad(k), pad(v), is_causal=True, enable_gqa=True)
        return out.transpose(0, 1).flatten(1, 2).index_select(1, rows).unsqueeze(0)

    return attend
