"""Call functions again when they fail."""

import functools
import logging
import random
import time

logger = logging.getLogger(__name__)


class RetryError(Exception):
    """All attempts failed; the last exception is the cause."""


def exponential_delays(base=0.5, factor=2.0, maximum=30.0, jitter=0.1):
    """Yield delays that grow by ``factor`` until they reach ``maximum``. A random
    part of up to ``jitter`` is added so that clients do not act in step.
    """
    delay = base
    while True:
        yield delay * (1.0 + random.uniform(0.0, jitter))
        delay = min(delay * factor, maximum)


def call_with_retry(function, attempts=3, exceptions=(Exception,), delays=None):
    """Call ``function`` until it succeeds and return its result. After the given
    number of attempts, raise ``RetryError``.
    """
    if attempts < 1:
        raise ValueError("attempts must be at least 1")
    delays = iter(delays or exponential_delays())
    for attempt in range(1, attempts + 1):
        try:
            return function()
        except exceptions as error:
            if attempt == attempts:
                raise RetryError(f"failed after {attempts} attempts") from error
            delay = next(delays)
            logger.warning("attempt %d failed (%s), next in %.1f s", attempt, error, delay)
            time.sleep(delay)


def retry(attempts=3, exceptions=(Exception,), **options):
    """Decorate a function so that it is tried several times before its exception
    reaches the caller.
    """

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            bound = functools.partial(function, *args, **kwargs)
            delays = exponential_delays(**options)
            return call_with_retry(bound, attempts, exceptions, delays)

        return wrapper

    return decorate
