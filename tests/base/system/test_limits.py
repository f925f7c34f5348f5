"""What a process may take, and took."""

import resource
import subprocess
import sys

import pytest

from localdflash.base.system import limits


def test_the_process_may_have_as_many_descriptors_as_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    limits.allow_descriptors(4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    limits.allow_descriptors(4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8192, 8192))
    limits.allow_descriptors(4096)
    assert set_to == [(4096, resource.RLIM_INFINITY), (2048, 2048)]


def test_the_peak_stays_when_the_memory_is_given_back() -> None:
    program = "from localdflash.base.system.limits import peak_memory; before = peak_memory()\n"
    program += "data = b'x' * 200_000_000; del data; print(before, peak_memory())"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 150_000_000
    assert 200_000_000 <= after < 400_000_000


def test_the_processors_and_their_load() -> None:
    assert limits.allowed_processors()
    assert limits.load_average() >= 0
