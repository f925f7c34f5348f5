"""The home that pictures are made in."""

import os
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.home import home_with
from localdflash.models.registry.pair_entry import models_folder


def test_it_has_the_models_of_this_user_and_nothing_else(home: Path) -> None:
    models = models_folder()
    with home_with("embedded") as made:
        assert os.environ["LOCALDFLASH_HOME"] == str(made)
        assert models_folder().readlink() == models
        assert [path.name for path in made.rglob("*")] == ["cache", "models"]
    assert os.environ["LOCALDFLASH_HOME"] == str(home)
    assert not made.exists()


def test_a_pair_that_is_not_here_is_named() -> None:
    with pytest.raises(SystemExit, match="localdflash models pull smollm2-135m"), home_with("smollm2-135m"):
        pass
