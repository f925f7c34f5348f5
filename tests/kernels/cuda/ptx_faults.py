"""Faults for a kernel's PTX: mistakes with tickets that a GPU would rarely reveal."""

import re
from collections.abc import Callable

_TICKET = re.compile(r"atom\.global\.gpu\.acq_rel\.add\.u32\s+%r\d+, \[ (%rd\d+) \+ 0 \]")


def without_order(ptx: str) -> str:
    """Take the ticket without release and acquire."""
    return re.sub(r"(atom\.\S*)\.acq_rel", r"\1.relaxed", ptx)


def without_barrier(ptx: str) -> str:
    """Take the ticket while other threads of the program may still be storing."""
    before, ticket, after = ptx.partition(_TICKET.search(ptx).group())  # type: ignore[union-attr]
    last_store = before.rindex("st.global")
    return before[:last_store] + before[last_store:].replace("bar.sync", "// bar.sync") + ticket + after


def without_reset(ptx: str) -> str:
    """Do not reset the counter."""
    address = re.escape(_TICKET.search(ptx).group(1))  # type: ignore[union-attr]
    return re.sub(rf"@%p\d+ st\.global\.b32 \[ {address} \+ 0 \]", "// \\g<0>", ptx)


FAULTS: dict[str, Callable[[str], str]] = {
    each.__name__: each for each in (without_order, without_barrier, without_reset)
}
