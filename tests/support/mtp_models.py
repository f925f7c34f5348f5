"""Small Qwen3.5 models of random weights with an MTP head, and the head's proposals.

The head's block is a dense layer of Hugging Face's model in float64. The rest is implemented here: the token's
embedding and the previous state are normed and fused before the block, and the last norm follows.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support import qwen35_models as qwen35
from tests.support.converted_models import HIDDEN, Case, rounded_tensor

TRUNK = qwen35.LAYERS
EPS, NORMS = 1e-6, ("enorm", "hnorm", "shared_head_norm")


class Head:
    """MTP head that proposes from committed tokens and their states [T, H] in the target."""

    def __init__(self, model: Any, block: Any, weights: dict[str, Tensor]) -> None:
        # Hugging Face's mixtures do not run in float64
        self._type = torch.float32 if hasattr(block.mlp, "experts") else torch.float64
        self._model, self._block = deepcopy(model).to(self._type), deepcopy(block).to(self._type)
        self._weights = {name: value.to(self._type) for name, value in weights.items()}

    @torch.no_grad()
    def propose(self, ids: Sequence[int], states: NDArray[np.float32], anchor: int, count: int) -> list[Tensor]:
        """Return logits [V] of every node; a node's token is the likeliest of the previous node."""
        none = torch.zeros(HIDDEN, dtype=self._type)
        tokens, before = [*ids, anchor], [none, *torch.from_numpy(states).to(self._type)]
        found = list[Tensor]()
        for _ in range(count):
            state = self._state(tokens, torch.stack(before))
            found.append(self._model.lm_head.weight @ state)
            tokens.append(int(found[-1].argmax()))
            before.append(state)
        return found

    def _state(self, tokens: Sequence[int], before: Tensor) -> Tensor:
        """Return the state [H] of the last token."""
        embedded = self._model.model.embed_tokens.weight[list(tokens)]
        pairs = torch.cat((self._norm(embedded, "enorm"), self._norm(before, "hnorm")), 1)
        x = (pairs @ self._weights["eh_proj"].T)[None]
        turning = self._model.model.rotary_emb(x, torch.arange(len(tokens)).expand(3, 1, -1))
        mask = torch.full((len(tokens),) * 2, -torch.inf).triu(1).to(self._type)[None, None]
        x = self._block(x, position_embeddings=turning, attention_mask=mask)
        return self._norm(x[0, -1], "shared_head_norm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * self._weights[name]


def case_of(architecture: str, kind: str = "F32") -> tuple[Case, Head]:
    """Return a `qwen35` or `qwen35moe` with a head after its layers; `model` has only the layers."""
    case = qwen35.case_of(architecture, kind, (TRUNK - 1, TRUNK), TRUNK + 1)
    generator = torch.Generator().manual_seed(2)
    weights = {name: 1 + 0.3 * torch.randn(HIDDEN, generator=generator) for name in NORMS}
    weights["eh_proj"] = rounded_tensor(0.2 * torch.randn((HIDDEN, 2 * HIDDEN), generator=generator), kind)
    case.tensors |= {f"blk.{TRUNK}.nextn.{name}.weight": value.numpy() for name, value in weights.items()}
    case.numbers |= {"nextn_predict_layers": 1}
    layers = case.model.model.layers
    case.model.model.layers, case.model.config.num_hidden_layers = layers[:TRUNK], TRUNK
    return case, Head(case.model, layers[TRUNK], weights)
