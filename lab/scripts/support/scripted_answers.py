"""Scripted answers in the daemon's format, for `scripted_engine`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

SLOTS = 8  # tokens in a block of the drafter
Json = dict[str, Any]


@dataclass(frozen=True)
class ScriptStep:
    """One event of an answer, `wait` seconds after the previous event. All its tokens but the last were drafted."""

    text: str
    wait: float = 0.0
    drafter: str = "dflash"

    def as_event(self) -> Json:
        """Return the step in the daemon's format."""
        spelled = tokens(self.text)
        accepted = 0 if self.drafter == "none" else max(len(spelled) - 1, 0)
        return {
            "drafter": self.drafter,
            "drafted": 0 if self.drafter == "none" else max(accepted, SLOTS - 1),
            "accepted": accepted,
            "tokens": spelled,
            "sizes": [len(token.encode()) for token in spelled],
            "ms": round(max(self.wait * 1e3, 0.1), 3),
        }


@dataclass(frozen=True)
class Answer:
    """Answer: its steps, then its end. `status` other than 200 refuses the request, with `message` and `code`.

    Improper ends: the connection closes ("cut"), an error ("error"), nothing more ("hang"), no event ("garbage").
    """

    steps: Sequence[ScriptStep] = ()
    end: Literal["stop", "length", "cut", "error", "hang", "garbage"] = "stop"
    status: int = 200
    message: str = ""
    code: str | None = None

    @classmethod
    def of(cls, text: str, *, rate: float = 0.0, size: int = 4, first: float = 0.0, **rest: Any) -> Self:
        """Return an answer of a text in steps of `size` tokens at `rate` tokens per second (0: without delay)."""
        spelled = tokens(text)
        groups = ["".join(spelled[at : at + size]) for at in range(0, len(spelled), size)]
        pause = size / rate if rate else 0.0
        drafters = ("dflash", "lookup", "none")
        steps = [ScriptStep(part, pause + first * (not at), drafters[at % 3]) for at, part in enumerate(groups)]
        return cls(steps, **rest)

    @classmethod
    def pieces(cls, *texts: str, wait: float = 0.0, **rest: Any) -> Self:
        """Return an answer in exactly these pieces, `wait` seconds apart."""
        return cls([ScriptStep(text, wait) for text in texts], **rest)

    @classmethod
    def read(cls, fields: Json) -> Self:
        """Return an answer from the result of `asdict`."""
        return cls(**{**fields, "steps": [ScriptStep(**step) for step in fields["steps"]]})


def tokens(text: str) -> list[str]:
    """Split a text into tokens: words with the blank before them, and single other characters."""
    return re.findall(r" ?\w+|\s|[^\w\s]", text)


def error(answer: Answer) -> Json:
    """Return the body of a refused request."""
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    return {"error": {"message": answer.message, "type": kind, "param": None, "code": answer.code or answer.status}}


def _totals(answer: Answer) -> tuple[int, int, int]:
    """Return the numbers of tokens, drafted tokens and accepted tokens."""
    events = [step.as_event() for step in answer.steps]
    return (
        sum(len(event["tokens"]) for event in events),
        sum(event["drafted"] for event in events),
        sum(event["accepted"] for event in events),
    )


def timings(answer: Answer, prompt: int) -> Json:
    """Return the timings of an answer to a prompt of `prompt` tokens."""
    total, drafted, accepted = _totals(answer)
    ms, steps = max(sum(step.wait for step in answer.steps) * 1e3, 1.0), max(len(answer.steps), 1)
    drafters = [step.drafter for step in answer.steps]
    return {
        "queue_ms": 0.1,
        "cache_n": 0,
        "prompt_n": prompt,
        "prompt_ms": 2.0,
        "prompt_per_token_ms": round(2.0 / prompt, 3),
        "prompt_per_second": prompt * 500.0,
        "predicted_n": total,
        "predicted_ms": round(ms, 3),
        "predicted_per_token_ms": round(ms / max(total, 1), 3),
        "predicted_per_second": round(total * 1e3 / ms, 3),
        "draft_n": drafted,
        "draft_n_accepted": accepted,
        "steps": len(answer.steps),
        "tau": round(total / steps, 3),
        "accept_by_slot": [round(0.9 / (slot + 1), 4) for slot in range(SLOTS - 1)],
        "steps_by_drafter": {name: drafters.count(name) for name in sorted(set(drafters))},
    }


def usage(answer: Answer, prompt: int) -> Json:
    """Return the token counts of an answer in OpenAI's fields."""
    total, drafted, accepted = _totals(answer)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total,
        "total_tokens": prompt + total,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }
