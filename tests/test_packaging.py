import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from localdflash.registry import shipped_file

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {
    "localdflash": "localdflash",
    "kernels": "localdflash/kernels",
    "lsp": "localdflash/lsp",
    "tui": "localdflash/tui",
}
WEIGHTS = (".gguf", ".safetensors")


def files_on_disk() -> set[str]:
    """What belongs into the wheel, by its name there."""
    return {
        path.relative_to(ROOT).as_posix().replace(folder, FOLDERS[folder], 1)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked; built from an unpacked sdist as an installer would, weights replaced by empty files."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "models.toml"):
        shutil.copy(ROOT / name, tree)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=_light)
    for name in ("README.md", "LICENSE"):
        (tree / name).touch()
    _build("build_sdist", tree, folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder / "sdist", filter="data")
    _build("build_wheel", next((folder / "sdist").iterdir()), folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "wheel")
    return folder / "wheel"


def _light(source: str, target: str) -> str:
    if source.endswith(WEIGHTS):
        Path(target).touch()
        return target
    return str(shutil.copy2(source, target))


def _build(what: str, tree: Path, out: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.{what}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_list_equals_the_disk() -> None:
    on_disk = {name.removesuffix("/__init__.py") for name in files_on_disk() if name.endswith("/__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == {name.replace("/", ".") for name in on_disk}


def test_the_package_list_is_sorted_and_inside_localdflash() -> None:
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert packages == sorted(set(packages))
    assert all(name == "localdflash" or name.startswith("localdflash.") for name in packages)


def test_top_level_folders_are_mapped_into_the_package() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    assert {folder: name.replace(".", "/") for name, folder in mapped.items()} == {
        folder: name for folder, name in FOLDERS.items() if folder != "localdflash"
    }


def test_nothing_but_localdflash_at_the_top_level_of_the_wheel(built: Path) -> None:
    names = {path.name for path in built.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"localdflash"}
    assert next(built.glob("*.dist-info/top_level.txt")).read_text().split() == ["localdflash"]


def test_every_file_is_in_the_wheel(built: Path) -> None:
    packed = {path.relative_to(built).as_posix() for path in (built / "localdflash").rglob("*") if path.is_file()}
    assert packed == files_on_disk() | {"localdflash/models.toml"}


def test_the_wheel_has_the_registry_of_the_source_tree(built: Path) -> None:
    assert (built / "localdflash" / "models.toml").read_bytes() == (ROOT / "models.toml").read_bytes()


def test_the_source_tree_has_one_registry() -> None:
    assert not (ROOT / "localdflash" / "models.toml").exists()
    assert shipped_file() == ROOT / "models.toml"


def test_the_unpacked_wheel_runs(built: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from localdflash.cli import main; from localdflash.registry import shipped_file;"
        "print(shipped_file()); sys.exit(main(['models', 'list']))"
    )
    environment = os.environ | {"PYTHONPATH": str(built), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{built / 'localdflash' / 'models.toml'}\nPAIR ")
    assert done.stderr == ""


def test_the_script_starts_what_exists() -> None:
    from localdflash import cli

    assert PROJECT["project"]["scripts"] == {"localdflash": "localdflash.cli:main"}
    assert callable(cli.main)
