"""Forms in which the operations of the CUDA engine run, and the fallback after a failed check.

An operation runs as its kernel, as the kernel's simplest launch, or as the torch reference. Steps are replayed as CUDA
graphs unless the switch `graph` is off. Prompts are read in blocks unless `blocks` is off. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

from localdflash.base.errors import UsageError

VARIABLE = "LOCALDFLASH_CUDA_OPS"
Form = Literal["kernel", "simple", "reference"]  # simple: no split-K, no dependent launch, one pipeline stage
FORMS: tuple[Form, ...] = get_args(Form)
SWITCHES = ("graph", "blocks")
OPERATIONS = (
    *("set_back", "dense", "embed", "qkv", "attention", "prompt_attention", "residual", "swiglu", "route"),
    *("experts_gate_up", "experts_down", "combine", "matmul", "convolve_in", "convolve_out", "head", "markov_anchor"),
    *("markov_slot", "top_k", "select", "sample", "gather_taps", "begin", "next_tokens", "propose", "caught_up"),
    *("lookup", "accept"),
)
BLOCK_OPERATIONS = ("dense", "prompt_attention")  # run only for prompts in blocks


@dataclass(frozen=True)
class Choices:
    """Forms of the operations that are not "kernel", and the switches that are off."""

    forms: Mapping[str, Form] = field(default_factory=dict)
    off: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text like "attention:simple,graph:off"; UsageError names an unknown entry."""
        forms, off = dict[str, Form](), set[str]()
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, _, form = entry.partition(":")
            if name in SWITCHES and form in ("on", "off"):
                off |= {name} if form == "off" else set()
            elif name in OPERATIONS and form in FORMS:
                forms[name] = form
            else:
                operations = f"{', '.join(OPERATIONS)} with :{', :'.join(FORMS)}"
                known = f"{operations}; {', '.join(SWITCHES)} with :on, :off"
                raise UsageError(f"{VARIABLE}: unknown entry {entry!r} (expected, separated by commas: {known})")
        return cls({name: form for name, form in forms.items() if form != "kernel"}, frozenset(off))

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return ",".join([*(f"{name}:{form}" for name, form in sorted(self.forms.items())),
                         *(f"{name}:off" for name in sorted(self.off))])  # fmt: skip

    def is_on(self, switch: str) -> bool:
        """Return whether a switch is on. Any reference turns graphs off: a graph cannot capture reads by the host."""
        return switch not in self.off and not (switch == "graph" and "reference" in self.forms.values())

    def fallback(self, failed_check: str) -> "Choices | None":
        """Return the choices to try after a check such as "attention of layer 3" failed; None if none is left."""
        name = failed_check.removeprefix("loading, ").partition(" ")[0]
        if name in BLOCK_OPERATIONS or "block" in failed_check:  # blocks with torch references would be slow
            return self._without("blocks") or self._simplest()
        if name in OPERATIONS:
            return self._lower(name)
        return self._without("graph") or self._simplest()

    def _lower(self, name: str) -> "Choices | None":
        form = self.forms.get(name, "kernel")
        if form == FORMS[-1]:
            return None
        return Choices({**self.forms, name: FORMS[FORMS.index(form) + 1]}, self.off)

    def _without(self, switch: str) -> "Choices | None":
        return Choices(self.forms, self.off | {switch}) if self.is_on(switch) else None

    def _simplest(self) -> "Choices | None":
        """Return choices with every operation in form "kernel" made "simple"; None if there is none."""
        simplest_forms = {name: self.forms.get(name, "simple") for name in OPERATIONS}
        return None if simplest_forms == self.forms else Choices(simplest_forms, self.off)
