from tests.engine.conftest import eager, fake_drafter, fake_target

__all__ = ["eager", "fake_drafter", "fake_target"]
