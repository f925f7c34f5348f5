"""Load a pair of target and drafter by its name: find the files, load them on a backend, load the tokenizer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from localdflash import __version__
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.automatic import load_best
from localdflash.loading.backends import check_device, load_on
from localdflash.loading.proof import SOUND, auto_tries_cuda, engine_status
from localdflash.loading.trial import try_first
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import Parts
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from localdflash.models.weights.gguf import cached_headers, read_header
from localdflash.models.weights.split import stats_of
from localdflash.text.edit_formats import FORMATS as EDIT_FORMATS
from localdflash.text.edit_formats import EditFormat, detect_edit_format
from localdflash.text.fim_formats import PREDICTS_EDITS, FimFormat, detect, format_of
from localdflash.text.tokenizer import Tokenizer

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

    `sampling` holds the fields of `SamplingParams` that the model's file or card recommends for chats. Attributes
    set from `Running` are described there.
    """

    def __init__(self, options: Options, skip_trial: bool = False) -> None:
        """Load the pair; first try unknown files in a child process (see `trial`), unless `skip_trial`."""
        check_device(options)
        self.options = options
        self.files = local_files(load_registry().resolve(options.pair, options.drafter or None))
        self._closing = ExitStack()
        with cached_headers():
            may_use_cuda = options.backend == "cuda" or (options.backend == "auto" and auto_tries_cuda(options))
            # Result of the CUDA engine's check: `SOUND`, or why not to use the engine; "": it was not considered.
            self.gpu_check = engine_status(self.files, options) if may_use_cuda else ""
            if not (skip_trial or options.backend in ("cuda", "torch") or self.gpu_check == SOUND):
                try_first(self.files, options)
            self.sampling = {**self.files.sampling, **recommended_sampling(read_header(self.files.target).metadata)}
            self.backend, self._running = self._load()
            self._closing.callback(self._running.close)
            try:  # not the target's vocabulary: threads may still encode text after the target's memory is freed
                self.tokenizer = Tokenizer.load(self.files.target)
            except BaseException:
                self.close()
                raise
        running = self._running
        self.pair, self.host_pair, self.context = running.pair, running.host_pair, running.context
        self.device, self.vocab_size = running.device, running.vocab_size
        self.predicted_memory, self.width_status = running.predicted_memory, running.width_status
        ignored_notices = _notices_of_ignored_options(options, self.backend, running)
        is_doubtful = self.backend == "cuda" and self.gpu_check not in ("", SOUND)
        check_notice = f"--backend cuda: {self.gpu_check}" if is_doubtful else ""
        self.notice = "; ".join(filter(None, [check_notice, *running.notices, *ignored_notices]))

    def _load(self) -> tuple[Runner, Running]:
        if self.options.backend == "auto":
            return load_best(self.files, self.options)
        return self.options.backend, load_on(self.options.backend, self.files, self.options)

    def memory(self) -> Parts:
        """Return the measured bytes of each part of the memory, to compare with `predicted_memory`."""
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
        if self.edit_format():
            raise ModelError(PREDICTS_EDITS)
        return format_of(self.files.fim) if self.files.fim else detect(self.tokenizer)

    def edit_format(self) -> EditFormat | None:
        """Return the format of a target that predicts edits; None for any other target."""
        if self.files.next_edit:
            return EDIT_FORMATS[self.files.next_edit]
        return None if self.files.fim else detect_edit_format(self.tokenizer, self.files.target.name)

    def before_close(self, wait: Callable[[], object]) -> None:
        """Register `wait`, which waits for a thread that uses this object, to be called before the pair is freed."""
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
        param: dict[str, Any] = {name: max(value, 0) if name == "top_k" else value}  # -1 means all tokens, as 0 does
        try:
            SamplingParams(**param)
        except UsageError:
            continue
        params |= param
    return params
