"""Convert identifiers and titles between common spellings."""

import re
import unicodedata

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
SMALL_WORDS = {"a", "an", "and", "as", "at", "by", "for", "in", "of", "on", "or", "the", "to"}


def split_words(text):
    """Split an identifier in any style into its lower-case words."""
    words = []
    for match in WORD.finditer(text):
        words.append(match.group().lower())
    return words


def snake_case(text):
    """Convert ``text`` to snake_case."""
    return "_".join(split_words(text))


def camel_case(text, upper_first=False):
    """Convert ``text`` to camelCase, or to PascalCase if ``upper_first`` is set."""
    words = split_words(text)
    if not words:
        return ""
    first = words[0].capitalize() if upper_first else words[0]
    return first + "".join(word.capitalize() for word in words[1:])


def slugify(text, separator="-", max_length=80):
    """Turn a title into a string that can be used in a URL. Accents are removed,
    everything else that is not a letter or a digit becomes a separator, and the
    result is cut at a word boundary.
    """
    normalized = unicodedata.normalize("NFKD", text)
    ascii_text = normalized.encode("ascii", "ignore").decode("ascii")
    words = re.findall(r"[a-z0-9]+", ascii_text.lower())
    slug = ""
    for word in words:
        candidate = f"{slug}{separator}{word}" if slug else word
        if len(candidate) > max_length:
            break
        slug = candidate
    return slug


def title_case(text):
    """Capitalize the words of a title except for short words in the middle."""
    words = text.split()
    result = []
    for index, word in enumerate(words):
        is_inner = 0 < index < len(words) - 1
        if is_inner and word.lower() in SMALL_WORDS:
            result.append(word.lower())
        else:
            result.append(word[:1].upper() + word[1:])
    return " ".join(result)
