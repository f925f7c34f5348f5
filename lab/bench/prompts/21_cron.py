"""Find the times at which a cron expression is due."""

from datetime import timedelta

FIELDS = [
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day", 1, 31),
    ("month", 1, 12),
    ("weekday", 0, 6),
]


def parse_field(text, low, high):
    """Return the set of numbers that one field of an expression stands for. A field
    is a comma-separated list of numbers, ranges and steps such as ``*/15``.
    """
    numbers = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (int(number) for number in span.split("-"))
        else:
            first = int(span)
            last = high if step else first
        if not low <= first <= last <= high:
            raise ValueError(f"{part!r} is not between {low} and {high}")
        numbers.update(range(first, last + 1, int(step or 1)))
    return numbers


class Schedule:
    """A parsed cron expression with five fields."""

    def __init__(self, expression):
        """Parse ``expression`` and check the range of each field."""
        parts = expression.split()
        if len(parts) != len(FIELDS):
            raise ValueError(f"expected {len(FIELDS)} fields, got {len(parts)}")
        self.expression = expression
        self.allowed = {}
        for part, (name, low, high) in zip(parts, FIELDS):
            self.allowed[name] = parse_field(part, low, high)

    def matches(self, moment):
        """Say whether the schedule is due in the minute of ``moment``."""
        values = {
            "minute": moment.minute,
            "hour": moment.hour,
            "day": moment.day,
            "month": moment.month,
            "weekday": moment.isoweekday() % 7,
        }
        return all(values[name] in self.allowed[name] for name in values)

    def next_after(self, moment, horizon_days=366):
        """Return the first due time after ``moment``, or None if there is none in
        the next ``horizon_days`` days.
        """
        candidate = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = candidate + timedelta(days=horizon_days)
        while candidate < end:
            if self.matches(candidate):
                return candidate
            candidate += timedelta(minutes=1)
        return None
