"""Which way a file runs on a device: its classes of widths and their price, measured once and kept in the cache folder.

Three modes. `exact`: the cheapest way whose rows are certified to agree. `fast`: llama.cpp as it comes; drafted text
may differ from plain decoding. `auto`: exact where a plain step costs less than 15 % more than llama.cpp's own, 3 %
where the model has no drafter. Else a pair runs fast, and says so; a model without a drafter decodes plainly, which
is exact, too, and costs nothing. Where nothing is certified that is what is said.
"""

import hashlib
import json
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
from localdflash.backends.llamacpp.classes import PLAIN, WIDTHS, LlamaDecoder, classes
from localdflash.backends.llamacpp.decode_flags import AS_IT_COMES, MOST, ON_GPU, ON_PROCESSOR, RAW, Flags, Way
from localdflash.backends.llamacpp.llama_kv_cache import most_rows
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.base.files.paths import cache_folder, create_private
from localdflash.base.machine.measurements import machine
from localdflash.models.backend_names import RowsMode
from localdflash.models.weights.split import stats_of

METHOD = 4  # of measuring: what another one found is measured again
DEAR, DEAR_ALONE = 1.15, 1.03  # prices of a plain step from which on `auto` is not exact: with a drafter, and without
FAST = "fast: drafted text may differ from plain decoding"
NO_WAY_BACK = "plain: nothing is drafted, for llama.cpp cannot take back the states of this model's recurrent layers"
ACCEPTED = 0.8  # probability of a drafted token to be right that ways are compared with
SECONDS = 2.0  # to time plain steps for, and drafts
FEWEST, ENOUGH = 5, 300  # rounds
LARGEST = 1 << 16  # bytes of a record
FEW_WIDTHS, FEW_PLAIN = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16), PLAIN[:4]  # where more would take minutes or memory
SLOW = 50.0  # milliseconds of a plain step there

OpenModel = Callable[[bool], Any]  # whether weights are repacked -> a model's handle, which is freed here
Decode = tuple[LlamaDecoder, int]  # of so many rows
Found = tuple[Way, LlamaDecoder]
Kind = Literal["exact", "plain", "fast", "not certified"]


@dataclass(frozen=True)
class Certified:
    """A way that was certified, and the milliseconds of a decode by its width."""

    way: Way
    ms: Mapping[int, float]

    def cost(self) -> float:
        """Expected milliseconds of a token: half of them are decoded plainly, half are drafted."""
        drafted = (ms / sum(ACCEPTED**node for node in range(width)) for width, ms in self.ms.items())
        return (self.ms[self.way.widths[0]] + min(drafted)) / 2


@dataclass(frozen=True)
class Record:
    """What was measured of a file: the milliseconds of llama.cpp's own plain step, and the ways that are exact."""

    raw_ms: float
    ways: Sequence[Certified]
    most: int = MOST  # rows of a decode that can be taken back to its first one; see `most_rows`

    def price(self, certified: Certified) -> float:
        """A plain step of a way, in plain steps of llama.cpp's own."""
        return certified.ms[certified.way.widths[0]] / self.raw_ms


@dataclass(frozen=True)
class Choice:
    """The way to run, what kind of text that gives, and whether anything may be drafted."""

    way: Way
    kind: Kind
    said: str

    @property
    def drafts(self) -> bool:
        """Whether steps may draft."""
        return self.kind != "plain"


def choose(record: Record, mode: RowsMode, with_drafter: bool) -> Choice:
    """The way of a pair, which it keeps to, drafting or not."""
    if record.most == 1:
        return Choice(AS_IT_COMES, "plain", NO_WAY_BACK)
    if mode == "fast":
        return Choice(AS_IT_COMES.up_to(record.most), "fast", FAST)
    most = float("inf") if mode == "exact" else DEAR if with_drafter else DEAR_ALONE
    found = [known for known in record.ways if record.price(known) < most]
    if found:
        best = min(found, key=Certified.cost)
        return Choice(best.way, "exact", f"exact: a plain step takes {record.price(best):.2f} of llama.cpp's own")
    return _inexact(record, mode, with_drafter)


def _inexact(record: Record, mode: RowsMode, with_drafter: bool) -> Choice:
    why = "no rows were found to agree here"
    if record.ways:
        least = min(map(record.price, record.ways))
        why = f"--rows exact would make a plain step take {least:.2f} of llama.cpp's own"
    way = AS_IT_COMES.up_to(record.most)
    if mode == "auto" and not with_drafter:
        return Choice(way, "plain", f"plain: nothing is drafted; {why}")
    if record.ways:
        return Choice(way, "fast", f"{FAST}; {why}")
    return Choice(way, "not certified", f"not certified: drafted text may differ from plain decoding; {why}")


def unmeasured(path: Path) -> Record:
    """What is known of a file without decoding: how much of a decode can be taken back."""
    model = llama_library.load_model(path, simulate=True)
    try:
        return Record(1.0, (), most_rows(model))
    finally:
        api.llama_model_free(model)


def recorded(path: Path, device: str, threads: int, open_model: OpenModel) -> Record:
    """What was measured of a file earlier, or is now. `device` is "cpu", or names a GPU and what lies on it."""
    candidates = ON_PROCESSOR if device == "cpu" else ON_GPU
    tiled = os.environ.get(llama_library.TILED, "")
    file = tuple(fact for part, size, changed in stats_of(path) for fact in (part.name, size, changed))
    key = repr((METHOD, machine(), file, device, threads, candidates, tiled, version("llama-cpp-python")))
    place = cache_folder() / "rows" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    if known := _read(place, key):
        return known
    record = measure(open_model, candidates, threads, device != "cpu")
    _write(place, key, record)
    return record


def measure(open_model: OpenModel, candidates: Sequence[Flags], threads: int, on_gpu: bool = False) -> Record:
    """Certify a file's ways and time them. The second of the flags is tried where the first leave a lone row alone.

    On a GPU all borders of the cache count, for those beyond what is measured may, too.
    """
    with ExitStack() as stack:
        decoders = _Decoders(open_model, threads, stack)
        raw = decoders.model(RAW.repack)
        most = most_rows(raw)
        if most == 1:
            return Record(1.0, (), most)
        lone = decoders(RAW), 1
        few = most < MOST or _in_turns([lone])[lone] >= SLOW
        widths, plain = (FEW_WIDTHS, FEW_PLAIN) if few else (WIDTHS, PLAIN)
        found = list[Found]()
        for plains in (plain[:1], plain[1:]):  # where a lone row has company in one way, no other is looked for
            for flags in candidates:
                if not any(way.widths[0] == 1 for way, _ in found):
                    found += _ways(decoders, flags, plains, widths, on_gpu)
            if found:
                break
        steps = [(decoder, way.widths[0]) for way, decoder in found]
        drafts = [(decoder, width) for way, decoder in found for width in _drafts(way)]
        ms = _in_turns(drafts) | _in_turns([lone, *steps])
        timed = [
            (way, {width: ms[decoder, width] for width in (way.widths[0], *_drafts(way))}) for way, decoder in found
        ]
        return Record(ms[lone], tuple(Certified(way, by_width) for way, by_width in timed), most)


def _ways(
    decoders: "_Decoders", flags: Flags, plains: Sequence[int], widths: Sequence[int], on_gpu: bool
) -> list[Found]:
    """The ways of one set of flags; none where llama.cpp cannot do what certifying takes."""
    try:
        decoder = decoders(flags)
        found = classes(decoder, plains, widths)
    except ModelError:
        return []
    return [(Way(flags, known.widths, known.borders or on_gpu), decoder) for known in found]


class _Decoders:
    """A file's models and contexts, opened when asked for: mostly its weights are needed in one order alone."""

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
        """A context with these flags; ModelError where llama.cpp has none."""
        if flags not in self._known:
            made = LlamaDecoder(self.model(flags.repack), flags, self._threads)
            self._known[flags] = self._stack.enter_context(closing(made))
        return self._known[flags]


def _drafts(way: Way) -> Sequence[int]:
    """The widths of drafts that are timed."""
    return sorted({way.width(rows) for rows in (4, 8) if rows <= way.widths[-1]})


def _in_turns(decodes: Sequence[Decode]) -> dict[Decode, float]:
    """Milliseconds of each, the fastest of some rounds: a busy moment of the machine hits none of them alone."""
    for decoder in {decoder for decoder, _ in decodes}:
        decoder.go_to(0)
    best, began, rounds = dict.fromkeys(decodes, float("inf")), time.perf_counter(), 0
    while rounds < FEWEST or (rounds < ENOUGH and time.perf_counter() - began < SECONDS):
        for decoder, width in best:
            best[decoder, width] = min(best[decoder, width], decoder.ms(width))
        rounds += 1
    return best


def _read(place: Path, key: str) -> Record | None:
    try:
        with place.open("rb") as stream:
            found = json.loads(stream.read(LARGEST))
        if found["key"] != key:
            return None
        ways = [
            Certified(
                Way(Flags(**known["flags"]), tuple(map(int, known["widths"])), bool(known["borders"])),
                {int(width): float(ms) for width, ms in known["ms"].items()},
            )
            for known in found["ways"]
        ]
        return Record(float(found["raw_ms"]), tuple(ways), int(found["most"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _write(place: Path, key: str, record: Record) -> None:
    """Keep a record; where that cannot be, the file is measured at every load."""
    ways = [
        {
            "flags": asdict(known.way.flags),
            "widths": list(known.way.widths),
            "borders": known.way.borders,
            "ms": dict(known.ms),
        }
        for known in record.ways
    ]
    fresh = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError, LocaldflashError):
        create_private(place.parent)
        try:
            text = json.dumps({"key": key, "raw_ms": record.raw_ms, "most": record.most, "ways": ways}, indent=1)
            fresh.write_text(text + "\n", encoding="utf-8")
            fresh.replace(place)
        finally:
            fresh.unlink(missing_ok=True)
