"""Load CSV files into lists of dictionaries and summarize them."""

import csv
from collections import defaultdict


def guess_type(values):
    """Return the narrowest of ``int``, ``float`` and ``str`` that can hold all of
    ``values``. Empty strings are ignored.
    """
    for candidate in (int, float):
        try:
            for value in values:
                if value != "":
                    candidate(value)
        except ValueError:
            continue
        return candidate
    return str


def read_table(path, delimiter=",", encoding="utf-8"):
    """Read a CSV file with a header line. Each column is converted to the type
    that fits all of its values; empty cells become ``None``.
    """
    with open(path, newline="", encoding=encoding) as stream:
        rows = list(csv.DictReader(stream, delimiter=delimiter))
    if not rows:
        return []
    for column in rows[0]:
        convert = guess_type([row[column] for row in rows])
        for row in rows:
            text = row[column]
            row[column] = convert(text) if text != "" else None
    return rows


def group_by(rows, column):
    """Collect rows that share the same value of ``column``."""
    groups = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return dict(groups)


def summarize(rows, column):
    """Compute the count, minimum, maximum and mean of a numeric column."""
    values = [row[column] for row in rows if row[column] is not None]
    if not values:
        return {"count": 0, "min": None, "max": None, "mean": None}
    return {
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "mean": sum(values) / len(values),
    }


def write_table(path, rows, columns=None):
    """Write rows to a CSV file with a header line."""
    columns = columns or list(rows[0])
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
