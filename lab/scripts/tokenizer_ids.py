"""Compare the ids of our tokenizer with llama.cpp's: `PYTHONPATH=. python -P lab/scripts/tokenizer_ids.py FILE.gguf…`.

Encodes every Python, C and Markdown file below the current folder and random Unicode text with both, and compares the
bytes of every id, the special tokens and the ends of answers. Vocabularies without weights: llama.cpp's models/ folder.
"""

import argparse
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from localdflash.models.weights.gguf import read_header
from localdflash.text.gguf_vocabulary import open_vocabulary
from localdflash.text.llama_vocabulary import LlamaVocabulary

MAX_TEXT_CHARS = 3000  # maximum length of an encoded text, since llama.cpp recurses on longer words
ASCII = [chr(code) for code in range(32, 127)] + ["\n", "\r\n", "\t", "  ", "    ", "'ll", "'S", " def", "::", "1234"]


def files(max_chars: int) -> Iterator[str]:
    """Yield the text of source files below the current folder, in pieces, until `max_chars` characters."""
    paths = sorted(path for kind in ("*.py", "*.cpp", "*.h", "*.md", "*.lua", "*.ts") for path in Path().rglob(kind))
    for path in random.Random(0).sample(paths, len(paths)):
        if ".venv" not in path.parts and "node_modules" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            for start in range(0, len(text), MAX_TEXT_CHARS):
                yield text[start : start + MAX_TEXT_CHARS]
                max_chars -= MAX_TEXT_CHARS
                if max_chars <= 0:
                    return


def random_texts(count: int) -> Iterator[str]:
    """Yield random texts that mix ASCII with neighbouring assigned Unicode characters."""
    draw = random.Random(0)
    assigned = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    for _ in range(count):
        near = draw.randrange(len(assigned))
        pool = ASCII + assigned[near : near + 40] * 2
        yield "".join(draw.choices(pool, k=draw.randrange(1, 200)))


def compare(path: Path, characters: int, texts: int) -> int:
    """Print how many ids of a vocabulary were compared and what differs; return the number of differences."""
    ours = open_vocabulary(read_header(path))
    if ours is None:
        print(f"{path.name}: encoded by llama.cpp")
        return 0
    theirs = LlamaVocabulary(path)
    differences = [
        f"{name}: {getattr(ours, name)} != {getattr(theirs, name)}"
        for name in ("size", "bos_id", "eos_id", "adds_bos", "end_ids")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    differences += [f"special token {token}" for token in set(ours.special_tokens) ^ set(theirs.special_tokens)]
    differences += [
        f"bytes of {token}: {ours.decode_token(token, special=special)!r}"
        for token in range(ours.size)
        for special in (False, True)
        if ours.decode_token(token, special=special) != theirs.decode_token(token, special=special)
    ]
    ids = 0
    for text in (*files(characters), *random_texts(texts)):
        expected = theirs.encode(text)
        ids += len(expected)
        if ours.encode(text) != expected:
            differences.append(f"ids of {text[:60]!r}")
    print(f"{path.name}: {ids} ids compared, {len(differences)} differences", *differences[:8], sep="\n  ", flush=True)
    return len(differences)


def main() -> None:
    """Compare every file of the command line; exit 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--characters", type=int, default=3_000_000)
    parser.add_argument("--texts", type=int, default=5_000)
    given = parser.parse_args()
    sys.exit(sum(compare(path, given.characters, given.texts) for path in given.files) > 0)


if __name__ == "__main__":
    main()
