"""LoRA (arXiv 2106.09685) on every matrix of a frozen decoder, and trained embedding rows for previously unused tokens.

W + up @ down is computed once per training step, so a forward pass costs as much as without adapters. `down` and `up`
stay float32. The embedding is also the head, so a trained row changes both.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Decoder, RMSNorm


class AdaptedLinear(nn.Module):
    """Frozen matrix [out, in] with a LoRA adapter, which starts as zero."""

    def __init__(self, weight: Tensor, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.weight, self._dtype = weight, dtype
        down = torch.randn(rank, inputs) * inputs**-0.5  # on the CPU: a seed gives the same numbers on every device
        self.down = nn.Parameter(down.to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(outputs, rank))
        self.merge()

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return W + up @ down, float32."""
        return torch.addmm(self.weight, self.up, self.down)

    def merge(self) -> None:
        """Recompute the weights that `forward` uses; call this after every change of the parameters."""
        self._merged_weight = self.merged().to(self._dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out], in the `dtype` of the matrix products."""
        return _MergedProduct.apply(x, self._merged_weight, self.down, self.up)


class _MergedProduct(torch.autograd.Function):
    """Product x @ merged.T, with gradients only for x and the adapter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, up: Tensor) -> Tensor:
        rows = x.flatten(0, -2).to(merged.dtype)
        ctx.save_for_backward(rows, merged, down, up)
        ctx.like = x
        return (rows @ merged.T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, merged, down, up = ctx.saved_tensors
        grad_output = gradients[0].flatten(0, -2).to(merged.dtype)  # [N, out]
        down_out = rows @ down.T.to(merged.dtype)  # [N, rank]
        grad_down_out = grad_output @ up.to(merged.dtype)  # [N, rank]
        grad_x = (grad_output @ merged).view(ctx.like.shape).to(ctx.like.dtype)
        return grad_x, None, (grad_down_out.T @ rows).float(), (grad_output.T @ down_out).float()


class AdaptedEmbedding(nn.Module):
    """Frozen embedding [V, H] of which the rows of `tokens` are trained."""

    def __init__(self, weight: Tensor, tokens: Sequence[int], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight
        self.tokens = torch.tensor(tokens, device=weight.device)
        self.rows = nn.Parameter(weight[self.tokens].clone())
        self._row_index = torch.zeros_like(weight[:, 0], dtype=torch.int64)  # position in `tokens` + 1; 0: frozen row
        self._row_index[self.tokens] = torch.arange(1, len(tokens) + 1, device=weight.device)
        self.head = weight.to(dtype)
        self.merge()

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return the whole embedding [V, H], float32."""
        return self.weight.index_copy(0, self.tokens, self.rows)

    @torch.no_grad()
    def merge(self) -> None:
        """See `AdaptedLinear.merge`."""
        self.head[self.tokens] = self.rows.to(self.head.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [...] to [..., H], float32."""
        row_index = self._row_index[ids]
        rows = F.embedding((row_index - 1).clamp_min(0), self.rows)
        return torch.where((row_index > 0).unsqueeze(-1), rows, F.embedding(ids, self.weight))


class RoundedNorm(nn.Module):
    """RMSNorm whose result is converted to `dtype` once, for all matrix products that read it."""

    def __init__(self, norm: RMSNorm, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm, self._dtype = norm, dtype

    def forward(self, x: Tensor) -> Tensor:
        """See `RMSNorm`."""
        return self.norm(x).to(self._dtype)


class Adapter:
    """LoRA adapter and trained embedding rows, inserted into `model`, whose other parameters are frozen."""

    def __init__(self, model: Decoder, rank: int, tokens: Sequence[int], dtype: torch.dtype) -> None:
        model.requires_grad_(False)
        self.model, self.rank = model, rank
        self.linears: dict[str, AdaptedLinear] = {}
        for name, module in list(model.layers.named_modules()):
            parent, _, attribute = name.rpartition(".")
            parent_module = model.layers.get_submodule(parent)
            if isinstance(module, nn.Linear):
                adapted = self.linears[f"layers.{name}"] = AdaptedLinear(module.weight.detach(), rank, dtype)
                setattr(parent_module, attribute, adapted)
            elif isinstance(module, RMSNorm) and attribute.endswith("layernorm"):
                setattr(parent_module, attribute, RoundedNorm(module, dtype))
        self.embedding = AdaptedEmbedding(model.embed_tokens.weight.detach(), tokens, dtype)
        model.embed_tokens = self.embedding

    def merge(self) -> None:
        """Make the model use the current parameters."""
        self.embedding.merge()
        for linear in self.linears.values():
            linear.merge()

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the names and values of the trained parameters."""
        yield "embed_tokens.rows", self.embedding.rows
        for name, linear in self.linears.items():
            yield f"{name}.down", linear.down
            yield f"{name}.up", linear.up
