import os
from pathlib import Path

from localdflash.code.context.ignore import IgnoreRules
from localdflash.code.context.listing import SKIPPED, list_files


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def listed(root: Path, **bounds: float) -> tuple[tuple[str, ...], bool]:
    found = list_files(str(root), IgnoreRules(root), **bounds)  # type: ignore[arg-type]
    return found.names, found.cut


def test_rules_secrets_and_dependencies_are_left_out(root: Path) -> None:
    write(root, "a.py", "b.log", "kept.log", ".env", "deep/x.key", ".ssh/config", "out/a.py", "mine/a.py")
    write(root, *(f"{at}{folder}/a.py" for folder in SKIPPED for at in ("", "deep/")))
    (root / ".gitignore").write_text("*.log\n!kept.log\nout/\n")
    (root / ".localdflashignore").write_text("mine\n")
    assert listed(root)[0] == (".gitignore", ".localdflashignore", "a.py", "kept.log")


def test_links_and_odd_files(root: Path, tmp_path: Path) -> None:
    write(root, "a.py")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside", "b.py")
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "link.py").symlink_to(root / "a.py")
    os.mkfifo(root / "pipe")
    assert listed(root)[0] == ("a.py",)
