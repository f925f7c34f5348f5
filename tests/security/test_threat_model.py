"""docs/threat-model.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_threat_names_existing_tests() -> None:
    rows = [line for line in (ROOT / "docs" / "threat-model.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    for row in rows[1:]:
        files = re.findall(r"`(tests/[^`]*)`", row.split("|")[3])
        assert files, row
        for file in files:
            assert "def test_" in (ROOT / file).read_text(), file


def test_every_test_of_this_folder_is_in_the_threat_model() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text()
    here = {f"tests/security/{path.name}" for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)}
    assert {name for name in here if name not in page} == set()
