"""Assembles a `CudaPair`: files checked, weights repacked on the device, steps captured and measured."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from localdflash.backends.cuda.cuda_checks import check_drafter, check_heads, check_kinds, check_target
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.cuda_sizes import (
    KV_TYPES,
    LONGEST,
    RESERVE,
    Memory,
    choose_context,
    drafter_bytes,
    file_bytes,
    gguf_drafter_bytes,
    predict_bytes,
    short_head_bytes,
    tensor_bytes,
)
from localdflash.backends.cuda.device import features, on
from localdflash.backends.cuda.native_fp4 import NativeFp4
from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops
from localdflash.backends.cuda.room import budget_of, is_out_of_memory
from localdflash.backends.cuda.runner import Runner, chunks
from localdflash.backends.cuda.stack import ROWS, SharedBuffers, padded
from localdflash.backends.cuda.step_choice import Ways
from localdflash.backends.cuda.stepper import SLACK, Stepper, Way
from localdflash.backends.cuda.weights import (
    DrafterWeights,
    GGUFSource,
    Heads,
    LayerWeights,
    Markov,
    Mixture,
    ModuleSource,
    Progress,
    Selector,
    TargetWeights,
    TensorSource,
    load_drafter,
    load_target,
)
from localdflash.backends.reference.dflash_files import check_gguf
from localdflash.backends.reference.dflash_files import load as load_module
from localdflash.base.errors import OutOfMemory, UsageError
from localdflash.kernels.cuda import attention, head, matmul, moe
from localdflash.kernels.cuda.kv_cache import check_type
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.rounds import CONTEXT
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.models.load_options import Compiling
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import gigabytes
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_gguf import config_of_gguf
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf

CALIBRATION_CONTEXT, ROUNDS = 64, 3


@dataclass(frozen=True)
class CudaSettings:
    """How to run a pair on a device. Zeros mean: what the model and the memory suggest."""

    context: int = 0
    kv: str = "f16"
    draft: bool = True
    drafter_bits: int = 8
    native_fp4: bool = False  # see native_fp4.py


@dataclass(frozen=True)
class _TargetFile:
    """A target whose header was read, but that is not on the device yet."""

    config: DecoderConfig
    source: TensorSource
    nbytes: int
    head_nbytes: int
    llama: bool  # the rows of q and k are in llama.cpp's order


@dataclass(frozen=True)
class _DrafterFile:
    """A drafter that was read, but is not on the device yet."""

    config: DFlashConfig
    source: TensorSource
    nbytes: int  # those of a short head included


def load_pair(
    target: Path,
    drafter: Path | None,
    device: torch.device,
    settings: CudaSettings,
    ops: Ops = KERNELS,
    progress: Progress | None = None,
    compiling: Compiling | None = None,
) -> CudaPair:
    """Load a pair that is ready to step; `target` is a GGUF file.

    ModelError, OutOfMemory and UsageError say what is wrong before much is loaded; OutOfMemory also if a context that
    was given turns out not to fit.

    On a CPU, with the references as `ops`, everything is float32: the oracle of the whole pair.
    """
    if settings.native_fp4 and device.type == "cuda" and not features(device).native_fp4:
        raise UsageError("--native-fp4 needs a Blackwell RTX GPU (compute capability 12): leave it out")
    check_type(KV_TYPES[settings.kv], device)
    with on(device):
        return _load_pair(target, drafter, device, settings, ops, progress, compiling)


def _load_pair(
    target: Path,
    drafter: Path | None,
    device: torch.device,
    settings: CudaSettings,
    ops: Ops,
    progress: Progress | None,
    compiling: Compiling | None,
) -> CudaPair:
    files = _read_target(target, device, progress)
    config = files.config
    file = _read_drafter(drafter, files, device, settings) if drafter else None
    if ops is not REFERENCES:
        check_heads(config, str(target))
        if file:
            check_heads(file.config.decoder, str(drafter))
    exact = device.type == "cpu" and ops is REFERENCES
    dtype = torch.float32 if exact else torch.float16
    kv = torch.float32 if exact else KV_TYPES[settings.kv]
    memory = predict_bytes(files.nbytes, config, file.config if file else None, file.nbytes if file else 0, kv)
    context = settings.context or _default_context(memory, config, device)
    if context > LONGEST:
        raise UsageError(f"--context {context}: the CUDA engine reaches {LONGEST} tokens")
    try:
        weights = load_target(files.source, config, context + SLACK, files.llama)
        drafting = load_drafter(file.source, file.config, weights, context + SLACK, dtype) if file else None
        plans: list[SplitPlan] = []
        if settings.native_fp4:
            native = NativeFp4()
            weights, ops, plans = native.convert(weights), native.ops(), native.plans()
        stepper = Stepper(
            ops, weights, drafting, context, _shared(weights, drafting, context, device, plans), dtype, kv
        )
        runner, ways = Runner(stepper), _ways(stepper, settings)
        runner.prepare(tuple(dict.fromkeys(("plain", *ways))), compiling)
        return CudaPair(stepper, runner, Ways(measure(stepper, runner, ways)))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    needed = gigabytes(memory.total(context))
    raise OutOfMemory(f"the GPU ran out of memory where {needed} were planned for {context} tokens of context")


def _default_context(memory: Memory, config: DecoderConfig, device: torch.device) -> int:
    """As much of the trained context as fits, of what is free now."""
    budget = budget_of(device) if device.type == "cuda" else MemoryBudget(1 << 40, RESERVE, "memory")
    return choose_context(memory, config.context_length, budget.free - budget.spare, budget.margin)


def _read_target(path: Path, device: torch.device, progress: Progress | None) -> _TargetFile:
    header = gguf.read_header(path)
    config = decoder_config(header)
    check_kinds(header)
    check_target(header, config)
    head = header.tensors["token_embd.weight" if config.tie_word_embeddings else "output.weight"]
    head_nbytes = tensor_bytes(head.ggml_type, head.shape)
    source, llama = GGUFSource(header, device, progress), header.architecture == "llama"
    return _TargetFile(config, source, file_bytes(header), head_nbytes, llama)


def _read_drafter(path: Path, target: _TargetFile, device: torch.device, settings: CudaSettings) -> _DrafterFile:
    """GGUF drafters keep their quantized types; safetensors are quantized at load."""
    source: TensorSource
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        config = config_of_gguf(header)
        check_gguf(header, config)
        source, nbytes = GGUFSource(header, device), gguf_drafter_bytes(header)
    else:
        module = load_module(path)
        config, bits = module.config, settings.drafter_bits
        source, nbytes = ModuleSource(module, device, bits), drafter_bytes(config, bits)
    c = target.config
    check_drafter(config, str(path))
    check_fit(config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(path))
    if config.short and not config.own_head:
        nbytes += short_head_bytes(target.head_nbytes, c.vocab_size, len(config.short))
    return _DrafterFile(config, source, nbytes)


def _shared(
    target: TargetWeights,
    drafter: DrafterWeights | None,
    context: int,
    device: torch.device,
    plans: Sequence[SplitPlan] = (),
) -> SharedBuffers:
    """Scratch memory for the largest GEMM, attention and head of both."""
    plans = [*plans, *_plans(target.layers, target.config, device)]
    shapes = [target.config]
    heads = [target.head]
    if drafter:
        c = drafter.config.decoder
        plans += [*_plans(drafter.layers, c, device), _plan(drafter.fuse, device)]
        plans += [_head_plan(heads, c.head_dim, device) for heads in drafter.context]
        shapes.append(c)
        heads.append(drafter.head)
        if isinstance(drafter.chooser, Markov):
            heads.append(drafter.chooser.bias)
        if isinstance(drafter.chooser, Selector):
            plans.append(_plan(drafter.chooser.projection, device))
    most_heads, head_dim = max(c.num_attention_heads for c in shapes), max(c.head_dim for c in shapes)
    scratch = attention.Scratch(device, most_heads, head_dim, chunks(context + SLACK - ROWS, context + SLACK))
    return SharedBuffers(SplitWorkspace(device, plans), scratch, head.HeadScratch(device, heads))


def _plans(layers: tuple[LayerWeights, ...], config: DecoderConfig, device: torch.device) -> Iterator[SplitPlan]:
    for layer in layers:
        yield from (_head_plan(heads, config.head_dim, device) for heads in layer.qkv)
        yield from (_plan(each.projection, device) for each in (layer.attention_conv, layer.mlp_conv) if each)
        yield _plan(layer.output, device)
        if isinstance(layer.mlp, Mixture):
            yield moe.router_plan(config.num_experts, padded(config.hidden_size))
        else:
            yield from (_plan(planes, device) for planes in (layer.mlp.gate_up, layer.mlp.down))


def _plan(planes: Planes, device: torch.device) -> SplitPlan:
    return matmul.plan(planes.n, planes.padded_k, device)


def _head_plan(heads: Heads, head_dim: int, device: torch.device) -> SplitPlan:
    return matmul.plan(heads.planes.n, heads.planes.padded_k, device, BN=head_dim)


def _ways(stepper: Stepper, settings: CudaSettings) -> tuple[Way, ...]:
    if not settings.draft:
        return ("plain",)
    return ("lookup", "block") if stepper.block else ("lookup",)


def measure(stepper: Stepper, runner: Runner, ways: Sequence[Way]) -> dict[Way, float]:
    """Milliseconds of a step by each way, with the graphs of short contexts captured. Empties the pair afterwards."""
    times = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for way in ways:
            stepper.state.zero_()
            stepper.state[CONTEXT] = min(CALIBRATION_CONTEXT, stepper.context // 2)
            for _ in range(2):  # the first of a kind fills caches
                runner.synchronize()
                began = time.perf_counter()
                runner.step(way, True, CALIBRATION_CONTEXT)
                runner.synchronize()
                times[way] = min(times[way], (time.perf_counter() - began) * 1e3)
    stepper.state.zero_()
    stepper.tokens.zero_()
    return times
