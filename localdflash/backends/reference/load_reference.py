"""Loads a pair on the reference backend: torch, float32, on the processor, without a memory plan."""

from importlib.metadata import version

import torch

from localdflash.backends.reference.dflash_files import load as load_dflash
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.machine.cores import clamp
from localdflash.engine.pair import Drafter
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running, compose
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.fingerprint import mismatch
from localdflash.models.weights.gguf import read_header


def load(files: LocalPair, options: Options) -> Running:
    """Load a pair; raise ModelError or UsageError."""
    threads, thread_notice = clamp(options.threads)
    if options.threads:
        torch.set_num_threads(threads)
    model, drafters = load_decoder(files.target), list[Drafter]()
    path = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
    taps, notices = tuple[int, ...](), [thread_notice]
    if path:
        dflash, c = load_dflash(path), model.config
        check_fit(dflash.config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(path))
        notices += [mismatch(path, dflash.config.trained_for, read_header(files.target))]
        drafters, taps = [DFlashDrafter(dflash, model.embed_tokens.weight, model.lm_head.weight)], dflash.config.taps
    target = TorchTarget(model, options.context, taps)
    pair = compose(target, drafters, options)
    return Running(
        pair=pair,
        host_pair=pair,
        context=target.context,
        device="cpu",
        vocab_size=target.vocab_size,
        identity=(target.context, [drafter.name for drafter in pair.drafters], version("torch")),
        measured=lambda: free.with_program({}),
        notices=notices,
        close=lambda: None,
    )
