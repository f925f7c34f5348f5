"""Statistics of a generation: tokens per verify step, acceptance by draft position, time by phase."""

from dataclasses import dataclass, field

from localdflash.engine.pair import Step


@dataclass
class Stats:
    """Sums over the steps of one or more generations. Times are milliseconds; a slot is a position in a draft."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    total_ms: float = 0.0
    offered_by_slot: list[int] = field(default_factory=list)
    accepted_by_slot: list[int] = field(default_factory=list)
    steps_by_drafter: dict[str, int] = field(default_factory=dict)

    def add(self, step: Step, total_ms: float) -> None:
        """Add one step that took `total_ms` in total."""
        self.steps += 1
        self.tokens += len(step.tokens)
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.draft_ms += step.draft_ms
        self.verify_ms += step.verify_ms
        self.total_ms += total_ms
        self.steps_by_drafter[step.drafter] = self.steps_by_drafter.get(step.drafter, 0) + 1
        missing = step.drafted - len(self.offered_by_slot)
        if missing > 0:
            self.offered_by_slot += [0] * missing
            self.accepted_by_slot += [0] * missing
        for slot in range(step.drafted):
            self.offered_by_slot[slot] += 1
            self.accepted_by_slot[slot] += int(slot < step.accepted)

    def merge(self, other: "Stats") -> None:
        """Add the sums of `other`."""
        for name in ("steps", "tokens", "drafted", "accepted", "draft_ms", "verify_ms", "total_ms"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("offered_by_slot", "accepted_by_slot"):
            mine, theirs = getattr(self, name), list(getattr(other, name))  # another thread may be adding
            mine += [0] * (len(theirs) - len(mine))
            for slot, count in enumerate(theirs):
                mine[slot] += count
        for drafter, steps in list(other.steps_by_drafter.items()):
            self.steps_by_drafter[drafter] = self.steps_by_drafter.get(drafter, 0) + steps

    @property
    def tau(self) -> float:
        """Tokens per verify step (τ), including the token that the target adds after the accepted draft."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second of all steps."""
        return self.tokens / self.total_ms * 1e3 if self.total_ms else 0.0

    def acceptance(self) -> list[float]:
        """Return the share of draft tokens that were accepted, by slot."""
        return [round(a / o, 4) for a, o in zip(self.accepted_by_slot, self.offered_by_slot, strict=False)]
