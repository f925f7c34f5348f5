"""Sampling parameters of a request. Clients import them too, so this module imports nothing heavy."""

from dataclasses import dataclass

from localdflash.base.errors import UsageError


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters, checked on creation (UsageError names the field and its range)."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 256  # newest tokens that the repetition penalty covers
    seed: int | None = None
    presence_penalty: float = 0.0  # see `LogitShift` for this field and the next two
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, shift of its logit), each token once

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 10.0)
        _check("top_p", self.top_p, 1e-6, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.1, 10.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token, bias in self.logit_bias:
            _check_integer("logit_bias token", token, 2**31 - 1)
            _check(f"logit_bias[{token}]", bias, -100.0, 100.0)
        _check_integer("top_k", self.top_k, 2**31 - 1)
        _check_integer("penalty_window", self.penalty_window, 2**31 - 1)
        if self.seed is not None:
            _check_integer("seed", self.seed, 2**63 - 1)


def _check(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:  # NaN fails too
        raise UsageError(f"{name}: invalid value {value!r} (expected a number from {low:g} to {high:g})")


def _check_integer(name: str, value: object, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise UsageError(f"{name}: invalid value {value!r} (expected an integer from 0 to {high})")
