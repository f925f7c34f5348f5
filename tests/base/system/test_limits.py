"""Limits of a process, and keys typed during start-up."""

import os
import pty
import resource
import sys
import termios

import pytest

from localdflash.base.system import limits
from localdflash.base.system.early_keys import keep_early_keys


def test_descriptor_limit_is_raised_to_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    limits.allow_descriptors(4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    limits.allow_descriptors(4096)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8192, 8192))
    limits.allow_descriptors(4096)
    assert set_to == [(4096, resource.RLIM_INFINITY), (2048, 2048)]


def test_keys_typed_early_are_kept_and_not_echoed(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    try:
        with os.fdopen(slave) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            before = termios.tcgetattr(slave)
            with keep_early_keys():
                os.write(master, b"hi\r")
                assert os.read(slave, 10) == b"hi\r"
                os.set_blocking(master, False)
                with pytest.raises(BlockingIOError):
                    os.read(master, 10)
            assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
