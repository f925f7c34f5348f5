"""Format and parse sizes and durations for people."""

import re

SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])")


def format_size(size, digits=1):
    """Format a number of bytes with a binary unit, for example ``1.5 KiB``."""
    if size < 0:
        return "-" + format_size(-size, digits)
    value = float(size)
    for unit in SIZE_UNITS:
        if value < 1024 or unit == SIZE_UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{int(value)} B"
    return f"{value:.{digits}f} {unit}"


def parse_size(text):
    """Convert a string such as ``10 MiB`` or ``512`` to a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        raise ValueError(f"invalid size: {text!r}")
    number, unit = match.groups()
    for power, name in enumerate(SIZE_UNITS):
        if unit.lower() in (name.lower(), name[0].lower()):
            return int(float(number) * 1024 ** power)
    if not unit:
        return int(float(number))
    raise ValueError(f"unknown unit: {unit!r}")


def format_duration(seconds):
    """Format a duration as its two largest parts, for example ``2h 5m``."""
    remaining = int(round(seconds))
    parts = []
    for unit, length in SECONDS.items():
        count, remaining = divmod(remaining, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) if parts else "0s"


def parse_duration(text):
    """Convert a string such as ``1h 30m`` to seconds."""
    total = 0.0
    for number, unit in DURATION_PART.findall(text.lower()):
        total += float(number) * SECONDS[unit]
    rest = DURATION_PART.sub("", text.lower()).strip()
    if rest:
        raise ValueError(f"cannot parse {rest!r} in duration {text!r}")
    return total
