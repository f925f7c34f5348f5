"""Which engine a user wants, as a value: naming one needs no code that reaches one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """The engine that a user wants: fields of `localdflash.backend.options.Options`, and which of them must hold.

    The others apply to a daemon that is started; a running one may have other values, but not the pair `instead_of`.
    `idle`: minutes until such a daemon leaves.
    """

    options: Mapping[str, object]
    given: Collection[str] = ()
    idle: float = 0.0
    instead_of: str = ""
