"""Which engine a user wants: a value of its own, since whoever only names it need not know how to reach one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """The engine that a user wants: fields of `localdflash.backend.options.Options`, and which of them have to hold.

    The others are for a daemon that is started; what runs already may have other ones. `idle`: minutes until such a
    daemon leaves.
    """

    options: Mapping[str, object]
    given: Collection[str] = ()
    idle: float = 0.0
