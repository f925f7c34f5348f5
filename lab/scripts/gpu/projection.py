"""Phase `projection`: what the steps measured here would take on RTX cards, with an error bar.

Measured step times are fitted by t = bytes / (share of the bandwidth) + launches * time of a boundary: two unknowns,
as many equations as ways and contexts. On a card, bytes move at 75 to 92 % of its bandwidth, as good kernels reach
there, but no faster than its multiprocessors work: the rate of one here, times their number and the ratio of clocks.
What this cannot tell: latency and efficiency of GDDR memory, 99 KB of shared memory, small L2 caches.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from localdflash.kernels.cuda.attention import CHUNK, FUSED
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

CONTEXTS = (1024, 16384)
SHARES = (0.92, 0.85, 0.75)  # of a card's bandwidth: best, likely, worst
HERE_GHZ = 1.98  # where the clock is not known
EFFICIENT_FROM_MB = 50  # a matrix that keeps all multiprocessors busy
WAYS = ("plain", "lookup", "draft", "block")


@dataclass(frozen=True)
class Card:
    """A graphics card: peak bandwidth, multiprocessors, boost clock."""

    gb_s: float
    multiprocessors: int
    ghz: float
    dependent_launch: bool


CARDS = {
    "RTX 3090": Card(936, 82, 1.70, False),
    "RTX 4090": Card(1008, 128, 2.52, False),
    "RTX 5090": Card(1792, 170, 2.41, True),
    "RTX PRO 6000": Card(1792, 188, 2.60, True),
}


def run(setup: Setup, report: BenchReport) -> None:
    """Fit what `steps` has measured, with each drafter, and project."""
    steps, environment = report.phase("steps"), report.phase("environment")
    kinds = [kind for kind in ("Q4_K", "Q8_0") if "nothing" in steps.get(kind, {}).get("alone_us_block", {})]
    if not kinds:
        raise RuntimeError("nothing to project from: run the phase `steps` first")
    peak = environment.get("read_bandwidth_gb_s") or 1.0
    rate, ghz = _rate_of_a_multiprocessor(report), _clock(environment)
    report.put(assumptions={"gb_s_per_sm": rate, "ghz": ghz, "shares": SHARES, "read_bandwidth_gb_s": peak})
    for kind in kinds:
        cases = _cases(steps[kind], setup.tiny)
        gb_s, boundary, worst = fit(cases)
        fitted = {"gb_s": round(gb_s, 1), "boundary_us": round(boundary, 3), "worst_error": round(worst, 4)}
        cards = {name: _on_card(card, cases, boundary, rate, ghz, report) for name, card in CARDS.items()}
        report.put(**{kind: {"fit": fitted, "cards": cards}})


@dataclass(frozen=True)
class ProjectedCase:
    """One way of stepping at one context: what it reads, how many kernels it launches, what it took here."""

    name: str
    nbytes: int
    launches: int
    ms: float


def _cases(found: dict[str, Any], tiny: bool) -> list[ProjectedCase]:
    """All that was measured with one drafter."""
    shape = synthetic.TINY if tiny else synthetic.QWEN3_8B
    drafter = synthetic.TINY_DRAFTER if tiny else synthetic.QWEN3_8B_DRAFTER
    layers, drafting = shape.num_hidden_layers, drafter.decoder.num_hidden_layers
    per_token = 4 * shape.num_key_value_heads * shape.head_dim  # keys and values of a layer, in float16
    plain, block = (_launches(found, way) for way in ("plain", "block"))
    launches = {"plain": plain, "lookup": plain + 1, "draft": block - 1, "block": block}
    cases = []
    for context in (64, 512) if tiny else CONTEXTS:
        times = found.get(f"step_ms_{context}", {})
        for way in (way for way in WAYS if way in times):
            drafts = way in ("draft", "block")
            nbytes = found["weights"]["verify"] + (found["weights"]["draft"] if drafts else 0)
            attended = layers + (drafting if drafts else 0)
            nbytes += per_token * context * attended
            merges = attended if context > CHUNK * FUSED else 0
            cases.append(ProjectedCase(f"{way} {context}", nbytes, launches[way] + merges, times[way]))
    return cases


def _launches(found: dict[str, Any], way: str) -> int:
    """Kernels of a step at a short context."""
    return sum(int(op["launches"]) for op in found[f"alone_us_{way}"].values())


def fit(cases: list[ProjectedCase]) -> tuple[float, float, float]:
    """GB/s, microseconds of a boundary, and the largest relative error of a case; least squares, both positive."""
    matrix = np.array([[case.nbytes / 1e6, case.launches / 1e3] for case in cases])
    times = np.array([case.ms for case in cases])
    scale = 1 / times  # relative errors
    (per_mb, boundary), *_ = np.linalg.lstsq(matrix * scale[:, None], np.ones(len(cases)), rcond=None)
    if boundary < 0 or per_mb <= 0:
        boundary, per_mb = 0.0, float((times / matrix[:, 0]).mean())
    error = np.abs((matrix @ np.array([per_mb, boundary])) * scale - 1).max()
    return float(1 / per_mb), float(boundary), float(error)


def _on_card(
    card: Card, cases: list[ProjectedCase], boundary: float, rate: float, ghz: float, report: BenchReport
) -> dict[str, Any]:
    """Milliseconds of every case on a card: best, likely, worst."""
    if not card.dependent_launch:
        boundary += _boundary_without_dependent_launch(report)
    busy = rate * card.multiprocessors * card.ghz / ghz
    answer = {}
    for case in cases:
        speeds = [min(share * card.gb_s, busy) for share in SHARES]
        overheads = [boundary * factor for factor in (0.8, 1.2, 2.0)]
        answer[case.name] = [
            round(case.nbytes / speed / 1e6 + case.launches * overhead / 1e3, 3)
            for speed, overhead in zip(speeds, overheads, strict=True)
        ]
    limit = "multiprocessors" if busy < SHARES[1] * card.gb_s else "memory"
    return {"limit": limit, "ms": answer}


def _rate_of_a_multiprocessor(report: BenchReport) -> float:
    """GB/s of weights that one reaches here in the largest Q4_K matrix."""
    gemms = [gemm for gemm in report.phase("kernels").get("gemms", {}).values() if "gb_s_per_sm" in gemm]
    large: list[float] = [
        gemm["gb_s_per_sm"] for gemm in gemms if gemm["mb"] >= EFFICIENT_FROM_MB and "matmul_us" in gemm
    ]
    return float(max(large or [gemm["gb_s_per_sm"] for gemm in gemms], default=10.0))


def _boundary_without_dependent_launch(report: BenchReport) -> float:
    """Microseconds that a boundary takes longer on a chip without it."""
    found = report.phase("boundary")
    plain = float(found.get("us_plain_all", 0.0))
    return max(0.0, plain - float(found.get("us_pdl_all", plain)))


def _clock(environment: dict[str, Any]) -> float:
    """GHz of this GPU at most."""
    smi = environment.get("nvidia_smi")
    text = str(smi.get("clocks.max.sm", "")) if isinstance(smi, dict) else ""
    return float(text.split()[0]) / 1e3 if text[:1].isdigit() else HERE_GHZ
