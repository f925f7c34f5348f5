"""From a pair's name to a pair that runs: files checked, weights loaded, drafters fitted, costs measured.

The one place that knows which backend is made of what. Everything that generates starts here.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from localdflash.drafters.lookup import LookupDrafter
from localdflash.engine.calibrate import calibrate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Drafter, Target
from localdflash.registry import LocalPair, load_registry, local_files
from localdflash.text.fim import FORMATS, FimFormat, detect
from localdflash.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localdflash.targets.llamacpp import LlamaCppTarget

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

    def fim_format(self) -> FimFormat:
        """The fill-in-the-middle format of this target; ModelError where it has none."""
        return FORMATS[self.files.fim] if self.files.fim else detect(self.tokenizer)

    def _llamacpp(self) -> list[Drafter]:
        from localdflash.targets.llamacpp import LlamaCppTarget

        options, files = self.options, self.files
        target = LlamaCppTarget(files.target, options.context, options.threads)
        self._closing.callback(target.close)
        self.target, self.tokenizer = target, Tokenizer.of_model(target.model)
        if not options.draft:
            return []
        if files.drafter_gguf:
            return [self._dflash_in_llamacpp(target, files.drafter_gguf)]
        if files.drafter_safetensors:
            return [self._dflash_in_torch(target, files.drafter_safetensors)]
        return []

    def _dflash_in_llamacpp(self, target: "LlamaCppTarget", path: Path) -> Drafter:
        from localdflash.drafters.llamacpp_dflash import LlamaCppDFlashDrafter

        drafter = LlamaCppDFlashDrafter(path, target, self.options.threads)
        self._closing.callback(drafter.close)
        target.set_taps(drafter.config.taps)
        return drafter

    def _dflash_in_torch(self, target: "LlamaCppTarget", path: Path) -> Drafter:
        """A safetensors drafter for a GGUF target, whose embedding and head it needs as tensors."""
        from localdflash.drafters.dflash import DFlashDrafter
        from localdflash.drafters.dflash_config import check_fit
        from localdflash.drafters.dflash_files import load
        from localdflash.weights.gguf import load_tensor, read_header

        drafter, header = load(path), read_header(self.files.target)
        check_fit(drafter.config, target.hidden_size, target.vocab_size, target.layers, str(path))
        target.set_taps(drafter.config.taps)
        embedding = load_tensor(header, "token_embd.weight")
        head = load_tensor(header, "output.weight") if "output.weight" in header.tensors else embedding
        return DFlashDrafter(drafter, embedding, head)

    def _torch(self) -> list[Drafter]:
        import torch

        from localdflash.drafters.dflash import DFlashDrafter
        from localdflash.drafters.dflash_config import check_fit
        from localdflash.drafters.dflash_files import load
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
