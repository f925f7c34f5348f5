"""Find files that a message mentions: `@path`, `@path:12-40`, `@path:Symbol`, `@"path with spaces"`."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.messages import Attachment

MAX_MENTIONS = 50  # files attached to one message
MAX_PATH_CHARACTERS = 1_000
_PART = r"\d{1,9}(?:-\d{1,9})?|[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)*"
_AT = re.compile(rf'(?<![\w@./\\+%-])@(?:"((?:[^"\\\n]|\\["\\])+)"(?::({_PART}))?|([^\s"][^\s]*))')
_UNQUOTED = re.compile(r"""[\w./~\-+@#$%&=!()\[\]{},^]*[\w/~\-+#$%&=]""")
_WITH_PART = re.compile(rf"(.+):({_PART})")
_END_PUNCTUATION = ".,;:!?)]}>'\"`*_…"  # left out of a mention at its end, unless a file has this name
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mention:
    """Mention of a file at text[start:end]."""

    start: int
    end: int
    path: str
    part: str = ""  # "12-40", "Box.add"

    @property
    def name(self) -> str:
        """Return the name of the attachment."""
        return f"{self.path}:{self.part}" if self.part else self.path


@dataclass(frozen=True, slots=True)
class MentionedFiles:
    """Attachments for the mentions in a text, and a line for each mention that was refused."""

    attachments: tuple[Attachment, ...] = ()
    refused: tuple[str, ...] = ()


def spell_mention(path: str, part: str = "") -> str:
    """Return a mention of `path` as the user would type it; `find_mentions` parses it back."""
    plain = _UNQUOTED.fullmatch(path) and not path.endswith(tuple(_END_PUNCTUATION))
    quoted = path if plain else '"' + re.sub(r'(["\\])', r"\\\1", path) + '"'
    return f"@{quoted}:{part}" if part else f"@{quoted}"


def possible_spellings(name: str) -> set[str]:
    """Return all spellings of a mention that attach a file under this name."""
    match = _WITH_PART.fullmatch(name)
    return {spell_mention(name)} | ({spell_mention(match[1], match[2])} if match else set())


def split_name(name: str, exists: Callable[[str], bool]) -> tuple[str, str]:
    """Split a name such as `box.py:12-40` into path and part; the part is "" if a file has the whole name."""
    match = None if exists(name) else _WITH_PART.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def find_mentions(text: str, exists: Callable[[str], bool], picked: Collection[str] = ()) -> list[Mention]:
    """Return the mentions of existing files outside of code fences, and all mentions in `picked` (from a list)."""
    fences, mentions = _find_fences(text), list[Mention]()
    for match in _AT.finditer(text):
        quoted, part, plain = match.groups()
        is_fenced = any(start <= match.start() < end for start, end in fences)
        if quoted is not None:
            readings = [(match.end(), re.sub(r"\\(.)", r"\1", quoted), part or "")]
        else:
            readings = _possible_readings(plain[:MAX_PATH_CHARACTERS], match.start() + 1)
        for end, path, part in readings:
            was_picked = (spelling := text[match.start() : end]) in picked and spelling == spell_mention(path, part)
            if was_picked or (not is_fenced and len(path) <= MAX_PATH_CHARACTERS and exists(path)):
                mentions.append(Mention(match.start(), end, path, part))
                break
    return mentions


def attach_mentions(text: str, files: AttachableFiles, picked: Collection[str] = ()) -> MentionedFiles:
    """Read each mentioned file once. Call this from a worker thread, because it blocks."""
    attachments: dict[str, Attachment] = {}
    refused: list[str] = []
    for count, mention in enumerate({one.name: one for one in find_mentions(text, files.exists, picked)}.values()):
        if count == MAX_MENTIONS:
            refused.append(f"more than {MAX_MENTIONS} files are mentioned; send them in several messages")
            break
        try:
            attachment = files.read(mention.path, mention.part)
        except UsageError as error:
            refused.append(str(error))
            continue
        attachments[attachment.name] = attachment
    return MentionedFiles(tuple(attachments.values()), tuple(refused))


def _possible_readings(token: str, start: int) -> list[tuple[int, str, str]]:
    """Return end, path and part of each reading of a token, longest first, with and without punctuation at its end."""
    readings = []
    while token:
        readings.append((start + len(token), token, ""))
        if split := _WITH_PART.fullmatch(token):
            readings.append((start + len(token), split[1], split[2]))
        if token[-1] not in _END_PUNCTUATION:
            break
        token = token[:-1]
    return readings


def _find_fences(text: str) -> list[tuple[int, int]]:
    """Return start and end of each code fence."""
    fences, opening = [], None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]):
            fences.append((opening.start(), fence.end()))
            opening = None
    return [*fences, (opening.start(), len(text))] if opening else fences
