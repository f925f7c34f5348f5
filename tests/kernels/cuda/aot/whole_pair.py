"""All launches of whole pairs, compiled for a chip: `python -m tests.kernels.cuda.aot.whole_pair 120` prints
JSON.

A `Stepper` is built as `load_pair` builds it, from planes without memory in the types of real files, and runs the
sequences that are captured as graphs: {capability: {pair: {"kernels": [facts], "others": [operations of torch],
"variants": [those that we tell apart, and with the kernels that Triton made of them]}}}.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from localdflash.backends.cuda.assembly import new_shared_buffers
from localdflash.backends.cuda.ops import KERNELS
from localdflash.backends.cuda.repack.ggml_blocks import FORMATS, INT8, PlaneLayout, empty
from localdflash.backends.cuda.stepper import SLACK, StepMode, Stepper
from localdflash.backends.cuda.weights import load_drafter, load_target
from localdflash.kernels.cuda.attention import BUCKETS
from localdflash.kernels.cuda.launch import collect_launches
from localdflash.kernels.cuda.planes import Planes
from localdflash.lab.scripts.synthetic import QWEN3_8B, QWEN3_8B_DRAFTER
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.weights.ggml_types import GGMLType
from tests.kernels.cuda.aot.compiling import compile_all, compiled_for, facts

META = torch.device("meta")
CONTEXT = 40_960
F16 = torch.float16
RANK, KERNEL, GROUP = 256, 2, 16  # of DSpark and DFlash 2
Q4_K, Q6_K = (FORMATS[kind][0] for kind in (GGMLType.Q4_K, GGMLType.Q6_K))
WAYS: tuple[StepMode, ...] = ("plain", "lookup", "block", "draft")
VIEWS = {"slice", "select", "view", "detach", "alias"}  # allowed operations of a sequence besides launches

DENSE = replace(QWEN3_8B, num_hidden_layers=4)
EXPERTS = replace(
    DENSE, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True
)


class Absent:
    """A `TensorSource` of tensors without memory: a Q4_K_M file, or all matrices in one layout."""

    def __init__(self, config: DecoderConfig, layout: PlaneLayout | None = None, taps: int = 1) -> None:
        c, self._layout = config, layout
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        f = c.moe_intermediate_size or c.intermediate_size
        self._shapes = {
            **{"attn_q": (q, c.hidden_size), "attn_k": (kv, c.hidden_size), "attn_v": (kv, c.hidden_size)},
            **{"attn_output": (c.hidden_size, q), "fc": (c.hidden_size, taps * c.hidden_size)},
            **{f"ffn_{name}": (f, c.hidden_size) for name in ("gate", "up", "gate_exps", "up_exps")},
            **dict.fromkeys(("ffn_down", "ffn_down_exps"), (c.hidden_size, f)),
            **dict.fromkeys(("token_embd", "output"), (c.vocab_size, c.hidden_size)),
            **dict.fromkeys(("attn_conv_proj", "ffn_conv_proj"), (2 * KERNEL * c.hidden_size // GROUP, c.hidden_size)),
            **{"markov_w2": (c.vocab_size, RANK), "selector_hidden": (RANK, c.hidden_size)},
        }
        self._config = config

    def kind(self, name: str) -> PlaneLayout:
        """Return a matrix's type in a Q4_K_M file: more bits for V and down of the first layers, and for the head."""
        fine = name in ("blk.0.attn_v.weight", "blk.1.attn_v.weight", "output.weight")
        fine = fine or name.startswith(("blk.0.ffn_down", "blk.1.ffn_down"))
        return self._layout or (Q6_K if fine else Q4_K)

    def planes(self, names: Sequence[str], interleave: bool = False, order: Tensor | None = None) -> Planes:
        """Return planes of the stacked matrices `names`, without memory."""
        shapes = [self._shapes[name.split(".")[-2]] for name in names]
        experts = self._config.num_experts if names[0].endswith("_exps.weight") else 1
        return empty(self.kind(names[0]), sum(n for n, _ in shapes), shapes[0][1], experts, META)

    def float_tensor(self, name: str) -> Tensor | None:
        """Return gains, router matrices, and tensors of lookups and convolutions; no biases."""
        c, part = self._config, name.removesuffix(".weight").split(".")[-1]
        if name.endswith("bias"):
            return None
        shape = {"ffn_gate_inp": (c.num_experts, c.hidden_size), "attn_q_norm": (c.head_dim,)}
        shape |= dict.fromkeys(("attn_conv_base", "ffn_conv_base"), (2, KERNEL, c.hidden_size))
        shape |= dict.fromkeys(("markov_w1", "selector_predecessor", "selector_successor"), (c.vocab_size, RANK))
        return torch.empty(shape.get(part.replace("_k_", "_q_"), (c.hidden_size,)), device=META)


def stepper(config: DecoderConfig, drafter: DFlashConfig | None, kv: torch.dtype) -> Stepper:
    """Return a stepper as `load_pair` builds it."""
    positions, drafting = CONTEXT + SLACK, None
    with patch("localdflash.backends.cuda.weights.scaled", lambda planes, _factor: planes):  # it reads the values
        target = load_target(Absent(config), config, positions, permuted_qk=False)
        if drafter:
            source = Absent(drafter.decoder, INT8, len(drafter.taps))
            drafting = load_drafter(source, drafter, target, positions, torch.float16)
    shared = new_shared_buffers(target, drafting, CONTEXT, META)
    return Stepper(KERNELS, target, drafting, CONTEXT, shared, torch.float16, kv)


def dense() -> Stepper:
    """Return a pair whose drafter has a sliding and a full layer."""
    drafter = replace(QWEN3_8B_DRAFTER, taps=(0, 2), window=2048, sliding=(True, False))
    drafter = replace(drafter, decoder=replace(drafter.decoder, num_hidden_layers=2))
    return stepper(DENSE, drafter, F16)


def experts() -> Stepper:
    """Return a pair without drafter, with a quantized KV cache and eight query heads per key head."""
    return stepper(EXPERTS, None, torch.int8)


def dspark() -> Stepper:
    """Return a pair with a DSpark drafter."""
    return stepper(replace(DENSE, num_hidden_layers=3), replace(QWEN3_8B_DRAFTER, taps=(0, 1), markov_rank=RANK), F16)


def dflash2() -> Stepper:
    """Return a pair with a DFlash 2 drafter."""
    drafter = replace(
        QWEN3_8B_DRAFTER, taps=(0, 1), conv_kernel=KERNEL, conv_group=GROUP, selector_rank=RANK, selector_top_k=16
    )
    return stepper(replace(DENSE, num_hidden_layers=3), drafter, F16)


def run(built: Stepper, splits: Sequence[int]) -> None:
    """Run every sequence that a runner captures; only the block, if the drafter chooses slot by slot."""
    if built.drafter and built.drafter.chooser:
        built.draft_block(splits[0])
        return
    for chunks in splits:
        for tiles in (1, 2):
            built.extend(tiles, chunks)
        for mode in WAYS if built.drafter else WAYS[:2]:
            for greedy in (True, False):
                built.step(mode, greedy, chunks)
    if built.drafter:
        built.catch_up()


class Watch(TorchDispatchMode):
    """Records operations of torch: a captured sequence must only launch kernels over static memory."""

    def __init__(self) -> None:
        super().__init__()
        self.others: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.others.add(name)
        return func(*args, **(kwargs or {}))


def compiled(build: Callable[[], Stepper], capability: int) -> dict[str, Any]:
    """Return each kernel launched on a chip once, and the operations of torch."""
    built = build()
    with compiled_for(capability) as kernels, Watch() as watch:
        run(built, (BUCKETS[0], BUCKETS[2]))
        with collect_launches() as launches:
            run(built, (BUCKETS[0], BUCKETS[2]))
    distinct = {id(kernel): kernel for kernel in kernels}
    pairs = {(launch.variant, id(kernel)) for launch, kernel in zip(launches, kernels, strict=True)}
    return {
        "kernels": [facts(kernel) for kernel in distinct.values()],
        "others": sorted(watch.others),
        "variants": [len({variant for variant, _ in pairs}), len(pairs)],
    }


def main() -> None:
    """Compile for the named chips, in a few processes."""
    jobs = [(build, int(capability)) for build in (dense, experts, dspark, dflash2) for capability in sys.argv[1:]]
    result: dict[str, dict[str, Any]] = {}
    for (build, capability), found in zip(jobs, compile_all(compiled, jobs), strict=True):
        result.setdefault(str(capability), {})[build.__name__] = found
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
