"""Load a pair by its name: find the files, choose and load a backend, load the tokenizer."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from localdflash import __version__
from localdflash.base.errors import UsageError
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.automatic import load_best
from localdflash.loading.backends import load_on
from localdflash.loading.proof import SOUND, auto_tries_cuda, engine_status
from localdflash.loading.trial import try_first
from localdflash.models.backend_names import Backend, Runner
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import Parts
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from localdflash.models.weights.gguf import cached_headers, read_header
from localdflash.models.weights.split import stats_of
from localdflash.text.fim_formats import FimFormat, detect, format_of
from localdflash.text.tokenizer import Tokenizer

DEVICES: Mapping[Backend, Collection[str]] = {"cpu": ("auto", "cpu"), "torch": ("auto", "cpu")}
KV_BACKENDS: Mapping[str, Sequence[Runner]] = {  # by KV cache type
    "f16": ("cuda", "cpu", "llama.cpp"),
    "int8": ("cuda", "cpu", "llama.cpp"),
    "k8v4": ("cpu", "llama.cpp"),
    "fp8": ("cuda",),
}
SAMPLING_KEYS = {  # field of `SamplingParams`: key in a GGUF's metadata after `general.sampling.`
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


class LoadedPair:
    """Loaded pair with its tokenizer, on `backend`. Close it, or use it as a context manager.

    `sampling` holds the fields of `SamplingParams` that the model's file or card recommends for chats. Unless `tried`,
    new files that llama.cpp or the CPU engine will read are first loaded in a child process (see `trial`).
    """

    def __init__(self, options: Options, tried: bool = False) -> None:
        self.options = options
        self.files = local_files(load_registry().resolve(options.pair, options.drafter or None))
        self._closing = ExitStack()
        with cached_headers():
            # Status of the CUDA engine with this pair; "" if the engine cannot be chosen.
            is_candidate = options.backend == "cuda" or (options.backend == "auto" and auto_tries_cuda(options))
            self.gpu_check = engine_status(self.files, options) if is_candidate else ""
            if not (tried or options.backend in ("cuda", "torch") or self.gpu_check == SOUND):
                try_first(self.files, options)
            self.sampling = {**self.files.sampling, **recommended_sampling(read_header(self.files.target).metadata)}
            self.backend, self._running = self._load()
            self._closing.callback(self._running.close)
            with ExitStack() as undo:
                undo.callback(self.close)
                # A separate vocabulary: other threads may still use it when the target's memory is freed.
                self.tokenizer = Tokenizer.load(self.files.target)
                undo.pop_all()
        running = self._running
        self.pair, self.host, self.context = running.pair, running.host, running.context
        self.device, self.vocab_size = running.device, running.vocab_size
        self.predicted, self.rows = running.predicted, running.rows
        ignored_notices = _notices_of_ignored_options(options, self.backend, running)
        is_doubtful = self.backend == "cuda" and self.gpu_check not in ("", SOUND)
        check_notice = f"--backend cuda: {self.gpu_check}" if is_doubtful else ""
        self.notice = "; ".join(filter(None, [check_notice, *running.notices, *ignored_notices]))

    def _load(self) -> tuple[Runner, Running]:
        backend, device = self.options.backend, self.options.device
        if device not in DEVICES.get(backend, (device,)) or (backend, device) == ("cuda", "cpu"):
            raise UsageError(f"--device {device}: not available with --backend {backend}; use cuda or llama.cpp")
        if backend == "auto":
            return load_best(self.files, self.options)
        return backend, load_on(backend, self.files, self.options)

    def memory(self) -> Parts:
        """Return the measured bytes of each part, by the names in `predicted`."""
        return self._running.measured()

    @property
    def drafters(self) -> Sequence[str]:
        """Return the names of the active drafters."""
        return self._running.drafters

    def identity(self) -> str:
        """Return a key of everything that changes a saved KV state: files, backend, settings and versions."""
        files = (self.files.target, self.files.drafter_gguf, self.files.drafter_safetensors)
        stats = [(str(part), *stat) for file in files if file for part, *stat in stats_of(file)]
        return repr((stats, self.backend, self.options.draft, self._running.identity, __version__))

    def fim_format(self) -> FimFormat:
        """Return the FIM format of the target; ModelError if it has none."""
        return format_of(self.files.fim) if self.files.fim else detect(self.tokenizer)

    def before_close(self, wait: Callable[[], object]) -> None:
        """Register `wait`, which waits for threads that still use the vocabulary, to run before the pair is freed."""
        self._closing.callback(wait)

    def close(self) -> None:
        """Free the backend's resources."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _notices_of_ignored_options(options: Options, backend: Runner, running: Running) -> Iterator[str]:
    """Yield a notice for each option that has no effect on the backend that runs the pair."""
    if options.gpu_layers > 0 and running.device == "cpu":
        yield f"--gpu-layers {options.gpu_layers}: ignored, {backend} runs the pair without a GPU"
    defaults = Options()
    bits = [f"--drafter-bits {options.drafter_bits}"] if options.drafter_bits != defaults.drafter_bits else []
    kv = [f"--kv {options.kv}"] if options.kv in KV_BACKENDS else []
    fp4 = ["--native-fp4"] if options.native_fp4 else []
    for backends, flags in ((("cuda", "cpu"), bits), (KV_BACKENDS.get(options.kv, ()), kv), (("cuda",), fp4)):
        if flags and backend not in backends:
            yield f"{', '.join(flags)}: ignored by {backend} (only for --backend {' and '.join(backends)})"


def recommended_sampling(metadata: Mapping[str, object]) -> dict[str, float]:
    """Return the valid sampling parameters that a model's metadata recommends."""
    params: dict[str, float] = {}
    for name, key in SAMPLING_KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if not isinstance(value, int | float):
            continue
        param: dict[str, Any] = {name: max(value, 0) if name == "top_k" else value}  # top_k -1: all, as 0
        try:
            SamplingParams(**param)
        except UsageError:
            continue
        params |= param
    return params
