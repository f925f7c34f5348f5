"""Choice of a file's decode mode: bit-exact widths and their cost, measured once and kept in the cache folder.

The option `rows` has three values. `exact`: the cheapest mode with bit-exact widths. `fast`: unmodified llama.cpp;
drafted text may differ from decoding without drafts. `auto`: exact if a step without drafting costs less than 15 % more
than llama.cpp's own, or 3 % for a model without a drafter. Otherwise a pair runs fast and says so, and a model without
a drafter decodes without drafts, which is exact and costs nothing. If no width is bit-exact, the status says so.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.classes import BASE_WIDTHS, WIDTHS, LlamaDecoder, find_classes
from localdflash.backends.llamacpp.decode_flags import (
    MAX_WIDTH,
    ON_GPU,
    ON_PROCESSOR,
    RAW,
    UNMODIFIED,
    DecodeMode,
    Flags,
)
from localdflash.backends.llamacpp.llama_kv_cache import max_revertible_width
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.base.files.json_file import read_json, write_json
from localdflash.base.files.paths import cache_folder
from localdflash.base.machine.measurements import machine
from localdflash.models.backend_names import RowsMode
from localdflash.models.weights.split import stats_of

METHOD_VERSION = 4  # records of another version are measured again
# Relative cost of a step without drafting above which `auto` is not exact: with a drafter, and without.
MAX_PRICE, MAX_PRICE_ALONE = 1.15, 1.03
MAY_DIFFER = "drafted text may differ from decoding without drafts"
FAST = f"fast: {MAY_DIFFER}"
NO_ROLLBACK = "no drafts: llama.cpp cannot roll back the states of this model's recurrent layers"
ACCEPTANCE = 0.8  # assumed acceptance rate when modes are compared
TIMING_SECONDS = 2.0  # of timing steps without drafts, and of timing drafts
MIN_ROUNDS, MAX_ROUNDS = 5, 300  # of timing
MAX_RECORD_BYTES = 1 << 16
# Widths measured for slow models and for those with recurrent layers, where more would take minutes or memory.
FEW_WIDTHS, FEW_BASE_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16), BASE_WIDTHS[:4]
SLOW_STEP_MS = 50.0

OpenModel = Callable[[bool], Any]  # whether weights are repacked -> a model handle, which this module frees
Batch = tuple[LlamaDecoder, int]  # context and width
Candidate = tuple[DecodeMode, LlamaDecoder]
Kind = Literal["exact", "plain", "fast", "not certified"]


@dataclass(frozen=True)
class MeasuredMode:
    """Decode mode with bit-exact widths, and the milliseconds of a batch by width."""

    mode: DecodeMode
    ms: Mapping[int, float]

    def cost(self) -> float:
        """Return the expected milliseconds per token if half of the tokens are drafted."""
        drafted = (ms / sum(ACCEPTANCE**node for node in range(width)) for width, ms in self.ms.items())
        return (self.ms[self.mode.widths[0]] + min(drafted)) / 2


@dataclass(frozen=True)
class FileMeasurement:
    """Measurements of a file: the milliseconds of an unmodified single-token step, and the exact modes."""

    raw_ms: float
    modes: Sequence[MeasuredMode]
    max_width: int = MAX_WIDTH  # rows of a decode that can be taken back to its first one; see `most_rows`

    def price(self, certified: MeasuredMode) -> float:
        """Return the cost of a step without drafting, relative to unmodified llama.cpp."""
        return certified.ms[certified.mode.widths[0]] / self.raw_ms


@dataclass(frozen=True)
class ModeChoice:
    """Mode to run, the kind of text that it gives, and a message for the status."""

    mode: DecodeMode
    kind: Kind
    message: str

    @property
    def drafts(self) -> bool:
        """Return whether steps may draft."""
        return self.kind != "plain"


def choose_mode(record: FileMeasurement, rows_mode: RowsMode, with_drafter: bool) -> ModeChoice:
    """Choose the decode mode of a pair, which it keeps with and without drafts."""
    if record.max_width == 1:
        return ModeChoice(UNMODIFIED, "plain", NO_ROLLBACK)
    if rows_mode == "fast":
        return ModeChoice(UNMODIFIED.limit_width(record.max_width), "fast", FAST)
    most = float("inf") if rows_mode == "exact" else MAX_PRICE if with_drafter else MAX_PRICE_ALONE
    found = [known for known in record.modes if record.price(known) < most]
    if found:
        best = min(found, key=MeasuredMode.cost)
        return ModeChoice(
            best.mode, "exact", f"exact: a step without drafts takes {record.price(best):.2f}× llama.cpp's own"
        )
    return _inexact(record, rows_mode, with_drafter)


def _inexact(record: FileMeasurement, rows_mode: RowsMode, with_drafter: bool) -> ModeChoice:
    why = "no batch width reproduced single-token logits bit for bit"
    if record.modes:
        least = min(map(record.price, record.modes))
        why = f"--rows exact would make a step without drafts take {least:.2f}× llama.cpp's own"
    mode = UNMODIFIED.limit_width(record.max_width)
    if rows_mode == "auto" and not with_drafter:
        return ModeChoice(mode, "plain", f"no drafts: {why}")
    if record.modes:
        return ModeChoice(mode, "fast", f"{FAST}; {why}")
    return ModeChoice(
        mode, "not certified", f"not certified: drafted text may differ from decoding without drafts; {why}"
    )


def skip_measuring(path: Path) -> FileMeasurement:
    """Return a measurement without timing: only how wide a batch that is rolled back may be."""
    model = llama_library.load_model(path, simulate=True)
    try:
        return FileMeasurement(1.0, (), max_revertible_width(model))
    finally:
        api.llama_model_free(model)


def load_or_measure(path: Path, device: str, threads: int, open_model: OpenModel) -> FileMeasurement:
    """Return the measurement of a file, from the cache folder if possible.

    `device` is "cpu", or names a GPU and the placement on it.
    """
    candidates = ON_PROCESSOR if device == "cpu" else ON_GPU
    tiled = os.environ.get(llama_library.TILED, "")
    file = tuple(fact for part, size, changed in stats_of(path) for fact in (part.name, size, changed))
    key = repr((METHOD_VERSION, machine(), file, device, threads, candidates, tiled, version("llama-cpp-python")))
    file_path = cache_folder() / "rows" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if known := _read(file_path, key):
        return known
    record = measure(open_model, candidates, threads, device != "cpu")
    _write(file_path, key, record)
    return record


def measure(open_model: OpenModel, candidates: Sequence[Flags], threads: int, on_gpu: bool = False) -> FileMeasurement:
    """Find a file's exact modes and time them.

    The second candidate is tried if the first has no class that contains width 1. On a GPU every growth of the padded
    cache counts as a border, since lengths beyond those measured may differ.
    """
    with ExitStack() as stack:
        decoders = _Decoders(open_model, threads, stack)
        raw = decoders.model(RAW.repack)
        most = max_revertible_width(raw)
        if most == 1:
            return FileMeasurement(1.0, (), most)
        single = decoders(RAW), 1
        few = most < MAX_WIDTH or _time_interleaved([single])[single] >= SLOW_STEP_MS
        widths, base = (FEW_WIDTHS, FEW_BASE_WIDTHS) if few else (WIDTHS, BASE_WIDTHS)
        found = list[Candidate]()
        for base_widths in (base[:1], base[1:]):  # other base widths only if width 1 is in no class
            for flags in candidates:
                if not any(mode.widths[0] == 1 for mode, _ in found):
                    found += _find_modes(decoders, flags, base_widths, widths, on_gpu)
            if found:
                break
        steps = [(decoder, mode.widths[0]) for mode, decoder in found]
        drafts = [(decoder, width) for mode, decoder in found for width in _draft_widths(mode)]
        ms = _time_interleaved(drafts) | _time_interleaved([single, *steps])
        timed = [
            (mode, {width: ms[decoder, width] for width in (mode.widths[0], *_draft_widths(mode))})
            for mode, decoder in found
        ]
        return FileMeasurement(ms[single], tuple(MeasuredMode(mode, by_width) for mode, by_width in timed), most)


def _find_modes(
    decoders: "_Decoders", flags: Flags, base_widths: Sequence[int], widths: Sequence[int], on_gpu: bool
) -> list[Candidate]:
    """Return the modes of one set of flags; none if llama.cpp cannot run the measurement."""
    try:
        decoder = decoders(flags)
        found = find_classes(decoder, base_widths, widths)
    except ModelError:
        return []
    return [(DecodeMode(flags, known.widths, known.borders or on_gpu), decoder) for known in found]


class _Decoders:
    """Models and contexts of a file, opened on first use: mostly only one weight order is needed."""

    def __init__(self, open_model: OpenModel, threads: int, stack: ExitStack) -> None:
        self._open, self._threads, self._stack = open_model, threads, stack
        self._models: dict[bool, Any] = {}
        self._known: dict[Flags, LlamaDecoder] = {}

    def model(self, repack: bool) -> Any:
        if repack not in self._models:
            self._models[repack] = self._open(repack)
            self._stack.callback(api.llama_model_free, self._models[repack])
        return self._models[repack]

    def __call__(self, flags: Flags) -> LlamaDecoder:
        """Return a context with these flags; raise ModelError if llama.cpp has none."""
        if flags not in self._known:
            made = LlamaDecoder(self.model(flags.repack), flags, self._threads)
            self._known[flags] = self._stack.enter_context(closing(made))
        return self._known[flags]


def _draft_widths(mode: DecodeMode) -> Sequence[int]:
    """Return the draft widths to time."""
    return sorted({mode.width_for(rows) for rows in (4, 8) if rows <= mode.widths[-1]})


def _time_interleaved(decodes: Sequence[Batch]) -> dict[Batch, float]:
    """Return the milliseconds of each batch, interleaved, the fastest of several rounds."""
    for decoder in {decoder for decoder, _ in decodes}:
        decoder.go_to(0)
    best, began, rounds = dict.fromkeys(decodes, float("inf")), time.perf_counter(), 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() - began < TIMING_SECONDS):
        for decoder, width in best:
            best[decoder, width] = min(best[decoder, width], decoder.time_ms(width))
        rounds += 1
    return best


def _read(path: Path, key: str) -> FileMeasurement | None:
    found = read_json(path, MAX_RECORD_BYTES)
    try:
        if found["key"] != key:
            return None
        ways = [
            MeasuredMode(
                DecodeMode(Flags(**known["flags"]), tuple(map(int, known["widths"])), bool(known["borders"])),
                {int(width): float(ms) for width, ms in known["ms"].items()},
            )
            for known in found["ways"]
        ]
        return FileMeasurement(float(found["raw_ms"]), tuple(ways), int(found["most"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, key: str, record: FileMeasurement) -> None:
    """Keep a record; if that fails, the file is measured at every load."""
    ways = [
        {
            "flags": asdict(known.mode.flags),
            "widths": list(known.mode.widths),
            "borders": known.mode.borders,
            "ms": dict(known.ms),
        }
        for known in record.modes
    ]
    with suppress(OSError, LocaldflashError):
        write_json(path, {"key": key, "raw_ms": record.raw_ms, "most": record.max_width, "ways": ways})
