"""Real code of each language with its true continuation: where a completion must stop.

In `where_code_ends.txt`, `‹` is the cursor, `›` where the completion ends, `¦` where the text after the cursor begins
(else there is none). What stands between `‹` and `¦` is fed character by character, and in larger pieces.
"""

import re
from pathlib import Path

import pytest

from localdflash.code.fim.extent import find_extent
from localdflash.code.fim.stopping import Stopping

_FILE = Path(__file__).with_name("where_code_ends.txt").read_text("utf-8")
CASES = re.findall(r"^=== (\w+): (.+)\n((?:(?!=== ).*\n)+)", _FILE, re.MULTILINE)


@pytest.mark.parametrize("language", sorted({case[0] for case in CASES}))
def test_an_answer_stops_where_a_user_would(language: str) -> None:
    for _, name, marked in (case for case in CASES if case[0] == language):
        before, _, rest = marked.partition("‹")
        text, _, after = rest.replace("›", "").partition("¦")
        for size in (1, 4, 1000):
            assert _left(language, before, after, text, size) == rest.partition("›")[0], name


def _left(language: str, before: str, after: str, text: str, size: int) -> str:
    stopping = Stopping(find_extent(language, before, after or "\n"))
    left = ""
    for start in range(0, len(text), size):
        left += stopping.push(text[start : start + size])
        if stopping.ended:
            break
    return left + stopping.finish()
