"""Read simple INI files without interpolation."""

from pathlib import Path

TRUE_WORDS = {"1", "yes", "true", "on"}
FALSE_WORDS = {"0", "no", "false", "off"}


class ConfigError(ValueError):
    """A line of the file cannot be understood."""

    def __init__(self, message, line_number):
        super().__init__(f"line {line_number}: {message}")
        self.line_number = line_number


def parse(text):
    """Parse the text of an INI file and return a dictionary of sections, each a
    dictionary of string values. Keys before the first section header belong to
    the section named by the empty string.
    """
    sections = {"": {}}
    current = sections[""]
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            if not line.endswith("]"):
                raise ConfigError("unterminated section header", number)
            current = sections.setdefault(line[1:-1].strip(), {})
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ConfigError("expected 'key = value'", number)
        current[key.strip().lower()] = value.strip()
    return sections


def to_bool(value):
    """Convert a word such as ``yes`` or ``off`` to a boolean."""
    word = value.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"not a boolean: {value!r}")


def load(path, defaults=None):
    """Read the file at ``path`` and fill in missing keys from ``defaults``. A
    missing file counts as an empty one.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    sections = parse(text)
    for name, values in (defaults or {}).items():
        section = sections.setdefault(name, {})
        for key, value in values.items():
            section.setdefault(key, str(value))
    return sections
