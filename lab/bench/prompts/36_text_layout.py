"""Wrap, indent and join text for the terminal."""

import re

ANSI_CODE = re.compile(r"\033\[[0-9;]*m")


def visible_length(text):
    """Return the number of characters that a terminal would show."""
    return len(ANSI_CODE.sub("", text))


def wrap_paragraph(text, width=72, indent=""):
    """Break a paragraph into lines of at most ``width`` characters. Words that are
    longer than a line are not broken.
    """
    lines = []
    current = indent
    is_empty = True
    for word in text.split():
        needed = visible_length(current) + visible_length(word) + (not is_empty)
        if needed > width and not is_empty:
            lines.append(current)
            current = indent
            is_empty = True
        current += word if is_empty else " " + word
        is_empty = False
    if not is_empty:
        lines.append(current)
    return lines


def wrap_text(text, width=72):
    """Wrap each paragraph of a text; empty lines separate paragraphs."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    wrapped = []
    for paragraph in paragraphs:
        wrapped.append("\n".join(wrap_paragraph(paragraph, width)))
    return "\n\n".join(wrapped)


def indent_lines(text, prefix="    ", skip_first=False):
    """Put ``prefix`` in front of every line that is not blank."""
    lines = text.split("\n")
    result = []
    for index, line in enumerate(lines):
        if line.strip() and not (skip_first and index == 0):
            line = prefix + line
        result.append(line)
    return "\n".join(result)


def columns(items, width=80, gap=2):
    """Arrange short strings in as many columns as fit and return the lines. The items
    run down the columns, as in a directory listing.
    """
    if not items:
        return []
    cell = max(len(item) for item in items) + gap
    count = max(1, (width + gap) // cell)
    height = -(-len(items) // count)
    lines = []
    for row in range(height):
        cells = items[row::height]
        line = "".join(item.ljust(cell) for item in cells)
        lines.append(line.rstrip())
    return lines


def pluralize(count, singular, plural=None):
    """Return the count with the right form of a noun."""
    if count == 1:
        return f"1 {singular}"
    plural = plural or singular + "s"
    return f"{count} {plural}"
