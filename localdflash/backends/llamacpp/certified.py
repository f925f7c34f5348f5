"""Chooses a file's decode mode: measures bit-exact widths and their cost once, and stores them in the cache folder.

The option `rows` has three values. `exact`: the cheapest mode with bit-exact widths. `fast`: unmodified llama.cpp;
drafted text may differ from decoding without drafts. `auto`: exact if a step without drafting costs less than 15 % more
than llama.cpp's own, or 3 % for a model without a drafter. Otherwise a pair runs `fast` with a notice, and a model
without a drafter decodes without drafts, which is exact and free. If no width is bit-exact, the status says so.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import llama_cpp.llama_cpp as api
import msgspec

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
from localdflash.base.files.json_file import read_record, write_json
from localdflash.base.files.paths import cache_folder
from localdflash.base.machine.measurements import machine
from localdflash.models.backend_names import RowsMode
from localdflash.models.weights.split import stats_of

METHOD_VERSION = 5  # records of another version are measured again
# Maximum `price` at which `auto` chooses an exact mode: with a drafter, and without.
MAX_PRICE, MAX_PRICE_ALONE = 1.15, 1.03
MAY_DIFFER = "drafted text may differ from decoding without drafts"
FAST = f"fast: {MAY_DIFFER}"
NO_ROLLBACK = "no drafts: llama.cpp cannot roll back the states of this model's recurrent layers"
ACCEPTANCE = 0.8  # assumed acceptance rate when modes are compared
TIMING_SECONDS = 2.0  # time for measuring steps without drafts, and again for measuring drafts
MIN_ROUNDS, MAX_ROUNDS = 5, 300  # timing rounds
MAX_RECORD_BYTES = 1 << 16
# Widths measured for slow models and models with recurrent layers, where more would take minutes or memory.
FEW_WIDTHS, FEW_BASE_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16), BASE_WIDTHS[:4]
SLOW_STEP_MS = 50.0

OpenModel = Callable[[bool], Any]  # takes whether to repack weights; returns a model handle, which this module frees
Batch = tuple[LlamaDecoder, int]  # decoder and batch width
Candidate = tuple[DecodeMode, LlamaDecoder]
Kind = Literal["exact", "plain", "fast", "not certified"]  # "plain": without drafts; the last two: not bit-exact


@dataclass(frozen=True)
class MeasuredMode:
    """Decode mode with bit-exact widths, and the milliseconds of a batch by width."""

    mode: DecodeMode
    ms: Mapping[int, float]

    def cost(self) -> float:
        """Return the mean milliseconds per token of steps without a draft and of the best drafted steps."""
        drafted = (ms / sum(ACCEPTANCE**position for position in range(width)) for width, ms in self.ms.items())
        return (self.ms[self.mode.widths[0]] + min(drafted)) / 2


@dataclass(frozen=True)
class FileMeasurement:
    """Measurements of a file: the milliseconds of an unmodified single-token step, and the exact modes."""

    raw_ms: float
    modes: tuple[MeasuredMode, ...]
    max_width: int = MAX_WIDTH  # widest batch of which all rows but one can be rolled back

    def price(self, exact: MeasuredMode) -> float:
        """Return the time of a step without drafting, relative to unmodified llama.cpp."""
        return exact.ms[exact.mode.widths[0]] / self.raw_ms


class Record(msgspec.Struct):
    """Measurement in the cache folder; `key` names the file, device, build and settings that it is valid for."""

    key: str
    measurement: FileMeasurement


@dataclass(frozen=True)
class ModeChoice:
    """Mode to run, the guarantee for its text, and a message for the status."""

    mode: DecodeMode
    kind: Kind
    message: str

    @property
    def may_draft(self) -> bool:
        """Return whether steps may draft."""
        return self.kind != "plain"


def choose_mode(measurement: FileMeasurement, rows_mode: RowsMode, with_drafter: bool) -> ModeChoice:
    """Choose a pair's decode mode from its file's measurement; the pair keeps the mode while drafting is off."""
    if measurement.max_width == 1:
        return ModeChoice(UNMODIFIED, "plain", NO_ROLLBACK)
    if rows_mode == "fast":
        return ModeChoice(UNMODIFIED.limit_width(measurement.max_width), "fast", FAST)
    max_price = float("inf") if rows_mode == "exact" else MAX_PRICE if with_drafter else MAX_PRICE_ALONE
    exact_modes = [mode for mode in measurement.modes if measurement.price(mode) < max_price]
    if exact_modes:
        best = min(exact_modes, key=MeasuredMode.cost)
        return ModeChoice(
            best.mode, "exact", f"exact: a step without drafts takes {measurement.price(best):.2f}× llama.cpp's own"
        )
    return _choose_inexact(measurement, rows_mode, with_drafter)


def _choose_inexact(measurement: FileMeasurement, rows_mode: RowsMode, with_drafter: bool) -> ModeChoice:
    reason = "no batch width reproduced single-token logits bit for bit"
    if measurement.modes:
        lowest = min(map(measurement.price, measurement.modes))
        reason = f"--rows exact would make a step without drafts take {lowest:.2f}× llama.cpp's own"
    mode = UNMODIFIED.limit_width(measurement.max_width)
    if rows_mode == "auto" and not with_drafter:
        return ModeChoice(mode, "plain", f"no drafts: {reason}")
    if measurement.modes:
        return ModeChoice(mode, "fast", f"{FAST}; {reason}")
    return ModeChoice(mode, "not certified", f"not certified: {MAY_DIFFER}; {reason}")


def skip_measuring(path: Path) -> FileMeasurement:
    """Return a measurement without timings, only with the maximum width."""
    model = llama_library.load_model(path, simulate=True)
    try:
        return FileMeasurement(1.0, (), max_revertible_width(model))
    finally:
        api.llama_model_free(model)


def load_or_measure(path: Path, device: str, threads: int, open_model: OpenModel, kv: str = "auto") -> FileMeasurement:
    """Return the measurement of a file, if possible from the cache folder; `device`: "cpu", or GPU and placement."""
    flags = ON_PROCESSOR if device == "cpu" else ON_GPU
    candidates = tuple(dict.fromkeys(each.with_kv(kv) for each in flags))
    tiled = os.environ.get(llama_library.TILED, "")
    file = tuple(fact for part, size, changed in stats_of(path) for fact in (part.name, size, changed))
    key = repr((METHOD_VERSION, machine(), file, device, threads, candidates, tiled, version("llama-cpp-python")))
    file_path = cache_folder() / "rows" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if stored := _read_measurement(file_path, key):
        return stored
    measured = measure(open_model, candidates, threads, device != "cpu", RAW.with_kv(kv))
    with suppress(OSError, LocaldflashError):  # if it cannot be stored, the file is measured at every load
        write_json(file_path, msgspec.to_builtins(Record(key, measured), str_keys=True))
    return measured


def measure(
    open_model: OpenModel, candidates: Sequence[Flags], threads: int, on_gpu: bool = False, raw: Flags = RAW
) -> FileMeasurement:
    """Find a file's exact modes and time them; `raw`: flags of unmodified llama.cpp.

    Modes on a GPU always get `borders`, because the lengths at which GPU kernels change are not measured.
    """
    with ExitStack() as stack:

        @cache
        def model(repack: bool) -> Any:
            handle = open_model(repack)
            stack.callback(api.llama_model_free, handle)
            return handle

        @cache
        def decoder_of(flags: Flags) -> LlamaDecoder:
            return stack.enter_context(closing(LlamaDecoder(model(flags.repack), flags, threads)))

        max_width = max_revertible_width(model(raw.repack))
        if max_width == 1:
            return FileMeasurement(1.0, (), max_width)
        single = decoder_of(raw), 1
        use_few = max_width < MAX_WIDTH or _time_interleaved([single])[single] >= SLOW_STEP_MS
        widths, base = (FEW_WIDTHS, FEW_BASE_WIDTHS) if use_few else (WIDTHS, BASE_WIDTHS)
        exact = list[Candidate]()
        for base_widths in (base[:1], base[1:]):  # wider base widths only if no class contains width 1
            for flags in candidates:
                if not any(mode.widths[0] == 1 for mode, _ in exact):
                    with suppress(ModelError):  # llama.cpp cannot run the measurement
                        classes = find_classes(decoder_of(flags), base_widths, widths)
                        modes = [DecodeMode(flags, each.widths, each.borders or on_gpu) for each in classes]
                        exact += [(mode, decoder_of(flags)) for mode in modes]
            if exact:
                break
        steps = [(decoder, mode.widths[0]) for mode, decoder in exact]
        drafts = [(decoder, width) for mode, decoder in exact for width in _draft_widths(mode)]
        ms = _time_interleaved(drafts) | _time_interleaved([single, *steps])
        timed = [
            (mode, {width: ms[decoder, width] for width in (mode.widths[0], *_draft_widths(mode))})
            for mode, decoder in exact
        ]
        return FileMeasurement(ms[single], tuple(MeasuredMode(mode, by_width) for mode, by_width in timed), max_width)


def _draft_widths(mode: DecodeMode) -> Sequence[int]:
    return sorted({mode.width_for(rows) for rows in (4, 8) if rows <= mode.widths[-1]})


def _time_interleaved(decodes: Sequence[Batch]) -> dict[Batch, float]:
    """Return each batch's fastest milliseconds over several rounds, in which the batches are interleaved."""
    for decoder in {decoder for decoder, _ in decodes}:
        decoder.go_to(0)
    best, began, rounds = dict.fromkeys(decodes, float("inf")), time.perf_counter(), 0
    while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and time.perf_counter() - began < TIMING_SECONDS):
        for decoder, width in best:
            best[decoder, width] = min(best[decoder, width], decoder.time_ms(width))
        rounds += 1
    return best


def _read_measurement(path: Path, key: str) -> FileMeasurement | None:
    record = read_record(path, MAX_RECORD_BYTES, Record)
    return record.measurement if record and record.key == key else None
