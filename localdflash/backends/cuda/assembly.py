"""Assembles a `CudaPair`: checks the files, repacks weights on the device, captures and times steps."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from localdflash.backends.cuda.choices import Choices
from localdflash.backends.cuda.cuda_checks import check_drafter, check_heads, check_target, check_tensor_types
from localdflash.backends.cuda.cuda_pair import CudaPair, StepModes
from localdflash.backends.cuda.cuda_sizes import KV_TYPES, MAX_CONTEXT, is_out_of_memory
from localdflash.backends.cuda.device import device_context, has_native_fp4
from localdflash.backends.cuda.native_fp4 import NativeFp4
from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops, select_forms
from localdflash.backends.cuda.runner import Runner, chunks, device_errors
from localdflash.backends.cuda.stack import ROWS, SharedBuffers, padded
from localdflash.backends.cuda.stepper import SLACK, StepMode, Stepper
from localdflash.backends.cuda.weights import (
    DrafterWeights,
    GGUFSource,
    LayerWeights,
    Markov,
    Mixture,
    ModuleSource,
    QkvProjection,
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
from localdflash.models.load_options import Options
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf

CALIBRATION_CONTEXT, ROUNDS = 64, 3  # tokens before a timed step, and rounds of timing all modes


def load_pair(
    target: Path, drafter: Path | None, device: torch.device, options: Options, ops: Ops = KERNELS
) -> CudaPair:
    """Load a pair from a GGUF target; raise ModelError, UsageError, OutOfMemory or DeviceError.

    `options.context` 0 means the trained context, at most `MAX_CONTEXT`. `options.cuda_ops` replaces single operations
    of `ops` by simpler forms (see `Choices`). With `REFERENCES` on a CPU, activations and KV cache are float32.
    """
    on_gpu = device.type == "cuda"
    if options.native_fp4 and on_gpu and not has_native_fp4(torch.cuda.get_device_capability(device)):
        raise UsageError("--native-fp4: needs a Blackwell RTX GPU (compute capability 12); leave it out")
    check_type(KV_TYPES[options.kv], device)
    with device_context(device), device_errors():
        header = gguf.read_header(target)
        config = decoder_config(header)
        check_tensor_types(header)
        check_target(header, config)
        drafting = _open_drafter(drafter, config, device, options.drafter_bits) if drafter else None
        if ops is not REFERENCES:
            check_heads(config, str(target))
            if drafting:
                check_heads(drafting[1].decoder, str(drafter))
        context = options.context or min(config.context_length, MAX_CONTEXT)
        if context > MAX_CONTEXT:
            raise UsageError(f"--context {context}: too long (the CUDA engine runs up to {MAX_CONTEXT} tokens)")
        try:
            return _build_pair(header, config, drafting, context, device, options, ops)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        raise OutOfMemory(f"the GPU ran out of memory while loading a pair with {context} tokens of context")


def _build_pair(
    header: gguf.GGUFHeader,
    config: DecoderConfig,
    drafting: tuple[TensorSource, DFlashConfig] | None,
    context: int,
    device: torch.device,
    options: Options,
    ops: Ops,
) -> CudaPair:
    in_float32 = device.type == "cpu" and ops is REFERENCES
    dtype = torch.float32 if in_float32 else torch.float16
    source = GGUFSource(header, device, options.progress)
    choices = Choices.parse(options.cuda_ops)
    weights = load_target(source, config, context + SLACK, header.architecture == "llama")
    drafter = load_drafter(*drafting, weights, context + SLACK, dtype) if drafting else None
    plans: list[SplitPlan] = []
    if options.native_fp4:
        native = NativeFp4()
        weights, ops, plans = native.convert(weights), native.ops(), native.plans()
    ops = select_forms(ops, choices)
    shared = new_shared_buffers(weights, drafter, context, device, plans)
    stepper = Stepper(ops, weights, drafter, context, shared, dtype, dtype if in_float32 else KV_TYPES[options.kv])
    modes: tuple[StepMode, ...] = ("plain",)
    if options.draft:
        modes = ("lookup", "block") if drafter else ("lookup",)
    if not choices.is_on("blocks"):
        stepper.reader = None
    runner = Runner(stepper, choices.is_on("graph"))
    runner.prepare(tuple(dict.fromkeys(("plain", *modes))), options.compiling)
    return CudaPair(stepper, runner, StepModes(measure(stepper, runner, modes)))


def _open_drafter(
    path: Path, target: DecoderConfig, device: torch.device, bits: int
) -> tuple[TensorSource, DFlashConfig]:
    source: TensorSource
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        config = config_of_gguf(header)
        check_gguf(header, config)
        source = GGUFSource(header, device)
    else:
        module = load_module(path)
        config, source = module.config, ModuleSource(module, device, bits)
    check_drafter(config, str(path))
    check_fit(config, target.hidden_size, target.vocab_size, target.num_hidden_layers, str(path))
    return source, config


def new_shared_buffers(
    target: TargetWeights,
    drafter: DrafterWeights | None,
    context: int,
    device: torch.device,
    plans: Sequence[SplitPlan] = (),
) -> SharedBuffers:
    """Return scratch buffers large enough for every launch of a pair, and for further GEMMs with these `plans`."""
    plans = [*plans, *_plans(target.layers, target.config, device)]
    shapes = [target.config]
    lm_heads = [target.head]
    if drafter:
        c = drafter.config.decoder
        plans += [*_plans(drafter.layers, c, device), _plan(drafter.fuse, device)]
        plans += [_head_plan(projection, c.head_dim, device) for projection in drafter.context]
        shapes.append(c)
        lm_heads.append(drafter.head)
        if isinstance(drafter.chooser, Markov):
            lm_heads.append(drafter.chooser.bias)
        if isinstance(drafter.chooser, Selector):
            plans.append(_plan(drafter.chooser.projection, device))
    most_heads, head_dim = max(c.num_attention_heads for c in shapes), max(c.head_dim for c in shapes)
    scratch = attention.Scratch(device, most_heads, head_dim, chunks(context + SLACK - ROWS, context + SLACK))
    return SharedBuffers(SplitWorkspace(device, plans), scratch, head.HeadScratch(device, lm_heads))


def _plans(layers: tuple[LayerWeights, ...], config: DecoderConfig, device: torch.device) -> Iterator[SplitPlan]:
    for layer in layers:
        yield from (_head_plan(projection, config.head_dim, device) for projection in layer.qkv)
        yield from (_plan(each.projection, device) for each in (layer.attention_conv, layer.mlp_conv) if each)
        yield _plan(layer.output, device)
        if isinstance(layer.mlp, Mixture):
            yield moe.router_plan(config.num_experts, padded(config.hidden_size))
        else:
            yield from (_plan(planes, device) for planes in (layer.mlp.gate_up, layer.mlp.down))


def _plan(planes: Planes, device: torch.device) -> SplitPlan:
    return matmul.plan(planes.n, planes.padded_k, device)


def _head_plan(projection: QkvProjection, head_dim: int, device: torch.device) -> SplitPlan:
    return matmul.plan(projection.planes.n, projection.planes.padded_k, device, BN=head_dim)


def measure(stepper: Stepper, runner: Runner, modes: Sequence[StepMode]) -> dict[StepMode, float]:
    """Return the fastest step's milliseconds by mode, after `CALIBRATION_CONTEXT` tokens; clear the pair's state."""
    times = dict.fromkeys(modes, float("inf"))
    for _ in range(ROUNDS):
        for mode in modes:
            stepper.state.zero_()
            stepper.state[CONTEXT] = min(CALIBRATION_CONTEXT, stepper.context // 2)
            for _ in range(2):  # the first step warms the GPU's caches
                runner.synchronize()
                began = time.perf_counter()
                runner.step(mode, True, CALIBRATION_CONTEXT)
                runner.synchronize()
                times[mode] = min(times[mode], (time.perf_counter() - began) * 1e3)
    stepper.state.zero_()
    stepper.tokens.zero_()
    return times
