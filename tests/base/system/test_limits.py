"""What a process may take, and took."""

import resource

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
