"""Functions made slow."""

import time
from collections.abc import Callable
from typing import Any


def delayed(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sleeps, then calls `function`."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        time.sleep(seconds)
        return function(*arguments, **keywords)

    return call
