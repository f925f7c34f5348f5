from tests.cli.conftest import _no_daemon, fails, run, short_home, tiny

__all__ = ["_no_daemon", "fails", "run", "short_home", "tiny"]
