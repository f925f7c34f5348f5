"""From a pair's name to a pair that runs: files checked, weights loaded, drafters fitted, costs measured.

The one place that knows which backend is made of what. Everything that generates starts here.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from localdflash.drafters.lookup import LookupDrafter
from localdflash.engine.calibrate import calibrate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Drafter, Target
from localdflash.registry import LocalPair, load_registry, local_files
from localdflash.text.fim import FORMATS, FimFormat, detect
from localdflash.text.tokenizer import Tokenizer

Backend = Literal["llama.cpp", "torch"]


@dataclass(frozen=True)
class Options:
    """How to run a pair. Zeros mean: what the model and the machine suggest."""

    pair: str = "embedded"
    backend: Backend = "llama.cpp"
    threads: int = 0
    context: int = 0
    draft: bool = True
    documents: Sequence[str] = ()  # texts that lookup may copy from


class LoadedPair:
    """A pair with its tokenizer. Close it, or use it as a context manager."""

    def __init__(self, options: Options) -> None:
        self._closing = ExitStack()
        self.options = options
        self.files: LocalPair = local_files(load_registry().resolve(options.pair))
        with ExitStack() as undo:
            undo.callback(self._closing.close)
            build = {"llama.cpp": self._llamacpp, "torch": self._torch}[options.backend]
            self.target: Target
            self.tokenizer: Tokenizer
            model_drafters = build()
            documents = [self.tokenizer.encode(text) for text in options.documents]
            drafters: list[Drafter] = [LookupDrafter(documents), *model_drafters] if options.draft else []
            controller = calibrate(self.target, drafters) if options.draft else None
            self.pair = HostPair(self.target, drafters, controller)
            undo.pop_all()

    def plain(self) -> HostPair:
        """Plain decoding on the same target, whose sequence is dropped."""
        self.pair.forget()
        return HostPair(self.target)

    def fim_format(self) -> FimFormat:
        """The fill-in-the-middle format of this target; ModelError where it has none."""
        return FORMATS[self.files.fim] if self.files.fim else detect(self.tokenizer)

    def _llamacpp(self) -> list[Drafter]:
        from localdflash.drafters.dflash_files import config_of_gguf
        from localdflash.drafters.llamacpp_dflash import LlamaCppDFlashDrafter
        from localdflash.targets.llamacpp import LlamaCppTarget
        from localdflash.weights.gguf import read_header

        options, files = self.options, self.files
        drafting = options.draft and files.drafter_gguf is not None
        taps = config_of_gguf(read_header(files.drafter_gguf)).taps if drafting and files.drafter_gguf else ()
        target = LlamaCppTarget(files.target, options.context, options.threads)
        self._closing.callback(target.close)
        self.target, self.tokenizer = target, Tokenizer.of_model(target.model)
        if not drafting or files.drafter_gguf is None:
            return []
        drafter = LlamaCppDFlashDrafter(files.drafter_gguf, target, options.threads)
        target.set_taps(taps)
        self._closing.callback(drafter.close)
        return [drafter]

    def _torch(self) -> list[Drafter]:
        import torch

        from localdflash.drafters.dflash import DFlashDrafter
        from localdflash.drafters.dflash_files import check_fit, load
        from localdflash.targets.gguf_decoder import load_decoder
        from localdflash.targets.torch_target import TorchTarget

        options, files = self.options, self.files
        if options.threads:
            torch.set_num_threads(options.threads)
        model = load_decoder(files.target)
        self.tokenizer = Tokenizer.load(files.target)
        path = files.drafter_safetensors or files.drafter_gguf
        if not options.draft or path is None:
            self.target = TorchTarget(model, options.context)
            return []
        drafter, c = load(path), model.config
        check_fit(drafter.config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(path))
        self.target = TorchTarget(model, options.context, drafter.config.taps)
        return [DFlashDrafter(drafter, model.embed_tokens.weight, model.lm_head.weight)]

    def close(self) -> None:
        """Free what the backend holds."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
