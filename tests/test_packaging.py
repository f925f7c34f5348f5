import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import click
import pytest

from localdflash import __version__
from localdflash.cli import cli
from localdflash.models.registry.registry import shipped_file

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = {
    "localdflash": "localdflash",
    "kernels": "localdflash/kernels",
    "lab": "localdflash/lab",
    "lsp": "localdflash/lsp",
    "tui": "localdflash/tui",
}
TREE = ("pyproject.toml", "setup.py", "MANIFEST.in", "models.toml")
WEIGHTS = (".gguf", ".safetensors")
SOURCES, LIBRARY = "kernels/cpu/", "localdflash/backends/cpu/_kernels.so"


def files_on_disk() -> set[str]:
    """Return the files of the wheel, by their names there."""
    return (
        {
            path.relative_to(ROOT).as_posix().replace(folder, FOLDERS[folder], 1)
            for folder in FOLDERS
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        - {LIBRARY}
        - {f"localdflash/{name}" for name in sources()}
        - {f"localdflash/{path.relative_to(ROOT)}" for path in (ROOT / "lab" / "scripts").rglob("*")}
    )


def sources() -> set[str]:
    """Return the C++ of the CPU engine and what compiles it."""
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / SOURCES).iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, with weights replaced by empty files, and the wheel from it."""
    folder = tmp_path_factory.mktemp("build")
    tree = folder / "tree"
    tree.mkdir()
    for name in TREE:
        shutil.copy(ROOT / name, tree)
    ignored = shutil.ignore_patterns("__pycache__", "_kernels.so")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=ignored, copy_function=_light)
    for name in ("README.md", "LICENSE"):
        (tree / name).touch()
    _build("build_sdist", tree, folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    next(folder.glob("localdflash-*[0-9]")).rename(folder / "sdist")
    compiler = folder / "quick"
    compiler.write_text('#!/bin/sh\nexec c++ "$@" -O0\n')
    compiler.chmod(0o755)
    _build("build_wheel", folder / "sdist", folder, CXX=str(compiler))
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> Path:
    """Return the unpacked wheel."""
    return _unpacked(folder, folder / "wheel")


def _unpacked(folder: Path, place: Path) -> Path:
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(place)
    return place


def _light(source: str, target: str) -> str:
    if source.endswith(WEIGHTS):
        Path(target).touch()
        return target
    return str(shutil.copy2(source, target))


def _build(what: str, tree: Path, out: Path, **environment: str) -> list[str]:
    """Build, and return the lines of output that name this package."""
    code = f"from setuptools import build_meta; build_meta.{what}({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("localdflash: ")]


def _packed(wheel: Path) -> set[str]:
    return {path.relative_to(wheel).as_posix() for path in (wheel / "localdflash").rglob("*") if path.is_file()}


def test_the_package_list_equals_the_disk() -> None:
    settings = PROJECT["tool"]["setuptools"]
    on_disk = {name.removesuffix("/__init__.py") for name in files_on_disk() if name.endswith("/__init__.py")}
    assert settings["packages"] == sorted(name.replace("/", ".") for name in on_disk)
    mapped = {folder: name.replace(".", "/") for name, folder in settings["package-dir"].items()}
    assert mapped == {folder: name for folder, name in FOLDERS.items() if folder != "localdflash"}
    assert shipped_file() == ROOT / "models.toml"


@pytest.mark.system
def test_the_wheel_has_every_file_and_suits_one_platform_and_every_python(folder: Path, built: Path) -> None:
    assert {path.name for path in built.iterdir() if path.suffix != ".dist-info"} == {"localdflash"}
    assert next(built.glob("*.dist-info/top_level.txt")).read_text().split() == ["localdflash"]
    assert _packed(built) == files_on_disk() | {"localdflash/models.toml", LIBRARY}
    assert (built / "localdflash" / "models.toml").read_bytes() == (ROOT / "models.toml").read_bytes()
    (wheel,) = folder.glob("*.whl")
    tags = wheel.stem.split("-")[2:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"
    if sys.platform == "linux":
        assert b"libstdc++.so" not in (built / LIBRARY).read_bytes()  # linked statically
    tree = folder / "sdist"
    assert {path.relative_to(tree).as_posix() for path in (tree / SOURCES).iterdir()} == sources()


@pytest.mark.system
@pytest.mark.parametrize(
    ("compiler", "warning"),
    [
        ("/nonexistent/c++", "No such file or directory: '/nonexistent/c++'"),
        ("c++ -include nowhere.h", "nowhere.h: No such file or directory"),
    ],
)
def test_without_a_compiler_the_package_is_built_without_the_library(
    compiler: str, warning: str, folder: Path, tmp_path: Path
) -> None:
    tree = shutil.copytree(folder / "sdist", tmp_path / "tree")  # with the library of the build before
    (line,) = _build("build_wheel", tree, tmp_path, CXX=compiler)
    assert line.startswith("localdflash: built without the CPU engine, only the extra `llama` runs pairs: ")
    assert line.endswith(warning)
    assert _packed(_unpacked(tmp_path, tmp_path / "wheel")) == files_on_disk() | {"localdflash/models.toml"}


@pytest.mark.system
def test_an_editable_install_has_its_library_among_the_sources(folder: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(folder / "sdist", tmp_path / "tree", ignore=shutil.ignore_patterns("build"))
    assert _build("build_editable", tree, tmp_path, CXX=str(folder / "quick")) == []
    assert (tree / LIBRARY).is_file()
    assert len(_build("build_editable", tree, tmp_path, CXX="false")) == 1
    assert not (tree / LIBRARY).exists()  # of sources that may be others by now


@pytest.mark.system
def test_the_unpacked_wheel_and_its_library_run(built: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from localdflash.cli import main; from localdflash.models.registry.registry import shipped_file;"
        "from localdflash.backends.cpu import cpu_library as library;"
        "print(library.find_library(), library.load().instruction_sets[-1]);"
        "print(shipped_file()); sys.exit(main(['models', 'list']))"
    )
    environment = os.environ | {"PYTHONPATH": str(built), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    registry = built / "localdflash" / "models.toml"
    assert done.stdout.startswith(f"{built / LIBRARY} portable\n{registry}\nPAIR ")
    assert done.stderr == ""


def test_packages_have_the_version_of_the_project() -> None:
    assert f"\npkgver={__version__}\n" in (ROOT / "packaging" / "aur" / "PKGBUILD").read_text()
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    for script in ("stage.sh", "deb/build.sh", "aur/PKGBUILD"):
        subprocess.run(["bash", "-n", str(ROOT / "packaging" / script)], check=True)


def test_the_docker_image_has_the_installation_s_files_and_one_command() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_through == {*TREE, *FOLDERS, "README.md", "LICENSE", "constraints.txt"}
    assert PROJECT["project"]["scripts"] == {"localdflash": "localdflash.cli:main"}
    lines = dict(line.split(maxsplit=1) for line in (ROOT / "Dockerfile").read_text().splitlines() if line)
    program, (name, *options) = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
    assert program == [*PROJECT["project"]["scripts"]]
    _, command, _ = cli.resolve_command(click.Context(cli), [name])
    assert command
    assert command.make_context(name, options).params["port"] == int(lines["EXPOSE"])
