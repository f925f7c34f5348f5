"""Analysis of PTX: tensor-core instructions, ordering around tickets, accesses before griddepcontrol.wait."""

import re

_GLOBAL_ACCESS = re.compile(r"\b(?:ld\.global|st\.global|ld\.relaxed|atom\.global|red\.global|cp\.async\.c[ag])\S*\s")
_PARAMETER = re.compile(r"ld\.param\S*\s+\{?([^;]*?)\}?,\s*\[\w+_param_(\d+)")
_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+(.*?);", re.M)
_ADDRESS = re.compile(r"(%rd\d+)")
_TICKET = re.compile(r"atom\.global\.gpu\.(\w+)\.add\.[us](?:32|64)")
_PAST_L1 = re.compile(r"ld\.global\.cg|atom\.global\.gpu\.acq_rel")
_WAIT = "griddepcontrol.wait"


def ticket_is_fenced(ptx: str) -> bool | None:
    """Return whether every last-arriver ticket is safe; None if there is none.

    Partial results are stored, then a barrier, the ticket (acq_rel), a barrier, and only then reads that bypass L1.
    """
    code = ptx.split(".section", 1)[0]
    parts = _TICKET.split(code)
    if len(parts) == 1:
        return None
    around = zip(parts[::2], parts[1::2], parts[2::2], strict=False)
    return all(
        order == "acq_rel"
        and "bar.sync" in before[max(before.rfind("st.global"), before.rfind("atom.")) :]
        and "bar.sync" in after.split("ld.global", 1)[0]
        and _PAST_L1.search(after) is not None
        for before, order, after in around
    )


def touched_before_wait(ptx: str) -> set[int] | None:
    """Return the indices of pointer arguments accessed before griddepcontrol.wait; None without a wait."""
    if _WAIT not in ptx:
        return None
    sources = _pointer_sources(ptx)
    touched: set[int] = set()
    for line in ptx[: ptx.index(_WAIT)].splitlines():
        if _GLOBAL_ACCESS.search(line):
            for register in _ADDRESS.findall(line):
                touched |= sources.get(register, set())
    return touched


def _pointer_sources(ptx: str) -> dict[str, set[int]]:
    """Return, for every 64-bit register, the arguments it may derive from: a fixed point over all moves."""
    sources: dict[str, set[int]] = {}
    for registers, position in _PARAMETER.findall(ptx):
        for register in _ADDRESS.findall(registers):
            sources[register] = {int(position)}
    moves = []
    for opcode, operands in _INSTRUCTION.findall(ptx):
        registers = _ADDRESS.findall(operands)
        if len(registers) > 1 and not opcode.startswith(("ld.", "st.", "cp.", "atom", "red")):
            moves.append((registers[0], registers[1:]))
    changed = True
    while changed:
        changed = False
        for target, operands in moves:
            known = sources.setdefault(target, set())
            new = set().union(*(sources.get(register, set()) for register in operands)) - known
            known |= new
            changed = changed or bool(new)
    return sources
