"""From a pair's name to a pair that runs: files checked, weights loaded, drafters fitted, costs measured.

The one place that knows which backend is made of what. Everything that generates starts here. Memory is planned before
it is taken: where it is short the drafter shrinks or goes before the target does, and `LoadedPair.notice` says so.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from localdflash.backend.fit import NO_DRAFTER, Fit, fit
from localdflash.backend.parts import PROGRAM, Parts
from localdflash.engine.calibrate import calibrate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, Pair, Target
from localdflash.errors import ModelError, NoDevice, OutOfMemory, UsageError
from localdflash.pairs.pair import LocalPair
from localdflash.pairs.registry import load_registry, local_files
from localdflash.text.fim import FORMATS, FimFormat, detect
from localdflash.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from localdflash.llamacpp.target import LlamaCppTarget

Backend = Literal["auto", "cpu", "cuda", "llama.cpp", "torch"]
UNPROVEN = "the CUDA engine has not been tried on a GPU by its authors yet; --backend llama.cpp is the proven way"
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Options:
    """How to run a pair. Zeros mean: what the model and the machine suggest.

    "auto" is CUDA where that can run the pair, else our own CPU engine or llama.cpp, whichever is faster here.
    """

    pair: str = "embedded"
    backend: Backend = "auto"
    threads: int = 0
    context: int = 0
    draft: bool = True
    drafter_bits: int = 8  # of a safetensors drafter's weights on the CUDA engine: 8 or 4
    native_fp4: bool = False  # multiply in FP4 on Blackwell RTX: rounds activations too, so another text
    kv: str = "f16"  # keys and values of the CUDA engine: f16, int8 or fp8
    progress: Progress | None = None


class LoadedPair:
    """A pair with its tokenizer. Close it, or use it as a context manager.

    `backend` is what runs it, `context` the tokens that it holds, `notice` one line to tell the user, or empty,
    `predicted` the bytes of each part that were planned (empty where nothing could be).
    """

    def __init__(self, options: Options) -> None:
        self._closing = ExitStack()
        self.options = options
        self.files: LocalPair = local_files(load_registry().resolve(options.pair))
        with ExitStack() as undo:
            undo.callback(self._closing.close)
            self.notice = ""
            self.predicted: Parts = {}
            self._fitted = ""  # what memory left of the drafter
            self.said_of_target: list[str] = []  # llama.cpp's lines on its memory
            self.said_of_drafter: list[str] = []
            self.tokenizer: Tokenizer
            self.target: Target  # not with CUDA, where target and drafter are one
            self.backend, self.pair = self._choose()
            undo.pop_all()

    def _choose(self) -> tuple[Backend, Pair]:
        """The pair on the backend that was asked for."""
        backend = self.options.backend
        if backend == "auto":
            return self._automatic()
        if backend == "cuda":
            return backend, self._cuda()
        loads = {"cpu": self._cpu, "llama.cpp": self._llamacpp, "torch": self._torch}
        return backend, self._host_pair(loads[backend]())

    def _automatic(self) -> tuple[Backend, Pair]:
        """The pair on the GPU; where CUDA cannot run it, on the processor."""
        from localdflash.cuda.device import driver_present

        if not driver_present():
            return self._on_processor()
        try:
            pair = self._cuda()
        except (NoDevice, ModelError, OutOfMemory) as error:
            return self._on_processor(f"not the CUDA engine: {error}")
        self.notice = "; ".join(filter(None, (UNPROVEN, self.notice)))
        return "cuda", pair

    def _on_processor(self, why: str = "") -> tuple[Backend, Pair]:
        """The pair on the engine that is faster here; why it is not on the GPU goes into the notice."""
        from localdflash.loading.choice import Case
        from localdflash.loading.timing import choose

        options, files = self.options, self.files
        case = Case(files.target, self._gguf_first(), options.threads, options.draft)
        if choose(case, options).backend == "cpu":
            self.notice = why and f"the CPU engine runs this pair, {why}"
            try:
                return "cpu", self._host_pair(self._cpu())
            except (NoDevice, ModelError, OutOfMemory) as error:
                self._closing.close()
                why = f"not the CPU engine: {error}"
        self.notice = why and f"llama.cpp runs this pair, {why}"
        return "llama.cpp", self._host_pair(self._llamacpp())

    def _gguf_first(self) -> Path | None:
        """The drafter's form that backends on the processor take, if there is one and it may draft."""
        return (self.files.drafter_gguf or self.files.drafter_safetensors) if self.options.draft else None

    def _host_pair(self, model_drafters: list[Drafter]) -> HostPair:
        options = self.options
        self.context = self.target.context
        drafters: list[Drafter] = [LookupDrafter(), *model_drafters] if options.draft else []
        controller = calibrate(self.target, drafters) if options.draft else None
        return HostPair(self.target, drafters, controller)

    def _cuda(self) -> Pair:
        from localdflash.cuda.device import find_device

        device = find_device()
        from localdflash.cuda.device import gpu_budget
        from localdflash.cuda.load import CudaSettings, load_pair
        from localdflash.cuda.sizes import BITS, CudaSizes

        options, files = self.options, self.files
        drafter = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
        sizes = CudaSizes(files.target, drafter, options.kv, options.drafter_bits)
        chosen = self._take(fit(sizes, gpu_budget(), options.context))
        drafter = drafter if chosen.drafter != NO_DRAFTER else None
        bits = BITS.get(chosen.drafter, options.drafter_bits)
        settings = CudaSettings(chosen.context, options.kv, options.draft, bits, options.native_fp4)
        pair = load_pair(files.target, drafter, device, settings, progress=options.progress)
        self.tokenizer, self.context = Tokenizer.load(files.target), pair.stepper.context
        return pair

    def _take(self, chosen: Fit) -> Fit:
        """Remember what is about to be loaded."""
        self.predicted, self._fitted = chosen.parts, chosen.drafter
        self._say(chosen.notice)
        return chosen

    def _say(self, line: str) -> None:
        """Add to the notice."""
        self.notice = "; ".join(filter(None, (self.notice, line)))

    def memory(self) -> Parts:
        """Bytes of each part as measured now, by the names of `predicted`."""
        from localdflash.loading.measured import measured

        return measured(self)

    def identity(self) -> str:
        """What decides the bytes of a saved sequence: files, backend, settings and versions."""
        from importlib.metadata import version

        files = (self.files.target, self.files.drafter_gguf, self.files.drafter_safetensors)
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file]
        drafters = [drafter.name for drafter in self.pair.drafters] if isinstance(self.pair, HostPair) else []
        options = self.options
        how = (self.backend, self.context, options.draft, drafters, self._fitted, options.kv, options.drafter_bits)
        return repr((stats, how, [version(name) for name in ("localdflash", "llama-cpp-python", "torch")]))

    def fim_format(self) -> FimFormat:
        """The fill-in-the-middle format of this target; ModelError where it has none."""
        return FORMATS[self.files.fim] if self.files.fim else detect(self.tokenizer)

    def _cpu(self) -> list[Drafter]:
        from localdflash.cpu import library
        from localdflash.machine.cores import clamp

        library.load()
        from localdflash.backend.free import program_bytes, system_budget
        from localdflash.cpu.load import load
        from localdflash.cpu.sizes import CpuSizes

        options, path, drafter = self.options, self.files.target, self._gguf_first()
        sizes = CpuSizes(path, drafter, options.threads)
        if options.context > sizes.trained:
            raise UsageError(f"context of {options.context} tokens: {path.name} was trained for 8 to {sizes.trained}")
        threads, fewer = clamp(options.threads)
        self._say(fewer)
        chosen = self._take(fit(sizes, system_budget(), options.context))
        self.predicted = {**chosen.parts, PROGRAM: program_bytes(False)}
        drafter = drafter if chosen.drafter != NO_DRAFTER else None
        target, drafters = load(path, drafter, chosen.context, threads, options.progress)
        self._closing.callback(target.close)
        self._say(target.packed.notice)
        for loaded in drafters:
            self._say(loaded.packed.notice)
        self.target, self.tokenizer = target, Tokenizer.load(path)
        return [*drafters]

    def _llamacpp(self) -> list[Drafter]:
        from localdflash.llamacpp import library
        from localdflash.llamacpp.target import LlamaCppTarget

        options, files = self.options, self.files
        drafter = self._gguf_first()
        chosen = self._plan_llamacpp(drafter)
        with library.said_sizes() as self.said_of_target:
            target = LlamaCppTarget(files.target, chosen.context if chosen else options.context, options.threads)
        self._closing.callback(target.close)
        if any("REPACK" in line for line in self.said_of_target):
            library.release_pages(files.target)
        # A vocabulary of its own: other threads may still use it when the target's memory is freed.
        self.target, self.tokenizer = target, Tokenizer.load(files.target)
        if drafter is None or (chosen and chosen.drafter == NO_DRAFTER):
            return []
        if drafter.suffix == ".gguf":
            with library.said_sizes() as self.said_of_drafter:
                return [self._dflash_in_llamacpp(target, drafter)]
        return [self._dflash_in_torch(target, drafter)]

    def _plan_llamacpp(self, drafter: Path | None) -> Fit | None:
        """What fits, before memory is taken for it; None where loading itself has to say what is wrong."""
        from localdflash.backend.free import program_bytes, system_budget
        from localdflash.llamacpp.sizes import LlamaCppSizes

        try:
            with LlamaCppSizes(self.files.target, drafter) as sizes:
                if self.options.context > sizes.trained:
                    return None
                chosen = self._take(fit(sizes, system_budget(), self.options.context))
                torch_runs = drafter is not None and drafter.suffix != ".gguf" and chosen.drafter != NO_DRAFTER
                self.predicted = {**chosen.parts, PROGRAM: program_bytes(torch_runs)}
        except ModelError:
            return None
        return chosen

    def _dflash_in_llamacpp(self, target: "LlamaCppTarget", path: Path) -> Drafter:
        from localdflash.llamacpp.drafter import LlamaCppDFlashDrafter

        drafter = LlamaCppDFlashDrafter(path, target, self.options.threads)
        self._closing.callback(drafter.close)
        target.set_taps(drafter.config.taps)
        return drafter

    def _dflash_in_torch(self, target: "LlamaCppTarget", path: Path) -> Drafter:
        """A safetensors drafter for a GGUF target, whose embedding and head it needs as tensors."""
        from localdflash.model.dflash_config import check_fit
        from localdflash.reference.dflash_files import load
        from localdflash.reference.drafter import DFlashDrafter
        from localdflash.weights.gguf import load_tensor, read_header

        drafter, header = load(path), read_header(self.files.target)
        check_fit(drafter.config, target.hidden_size, target.vocab_size, target.layers, str(path))
        target.set_taps(drafter.config.taps)
        embedding = load_tensor(header, "token_embd.weight")
        head = load_tensor(header, "output.weight") if "output.weight" in header.tensors else embedding
        return DFlashDrafter(drafter, embedding, head)

    def _torch(self) -> list[Drafter]:
        import torch

        from localdflash.model.dflash_config import check_fit
        from localdflash.reference.dflash_files import load
        from localdflash.reference.drafter import DFlashDrafter
        from localdflash.reference.gguf_decoder import load_decoder
        from localdflash.reference.target import TorchTarget

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

    def before_close(self, wait: Callable[[], object]) -> None:
        """Have this called before the pair is freed: it waits for who still reads the vocabulary."""
        self._closing.callback(wait)

    def close(self) -> None:
        """Free what the backend holds."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
