"""What the first minute reads out of pip's log and the environment; its steps are run by hand."""

from pathlib import Path

import pytest

from localdflash.lab.scripts import first_minute


@pytest.mark.parametrize(
    ("log", "origin"),
    [
        ("Using cached llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl\n", "out of pip's cache, compiled earlier"),
        ("  Building wheel for llama-cpp-python (pyproject.toml): started\n", "compiled"),
        ("  Building wheel for localdflash (pyproject.toml)\n", "out of pip's cache, compiled earlier"),
    ],
)
def test_whether_llama_cpp_was_compiled(log: str, origin: str) -> None:
    assert first_minute._origin(log) == origin


def test_bytes_by_package(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, size in (("torch/lib/libtorch.so", 7), ("torch/__init__.py", 2), ("numpy.libs/blas.so", 5)):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(b"x" * size)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").write_bytes(b"x")
    (tmp_path / "bin" / "pip3").symlink_to("pip")
    assert first_minute._sizes(tmp_path) == {"torch": 9, "numpy": 5, "python": 1}
