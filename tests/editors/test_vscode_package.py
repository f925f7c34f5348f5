"""What a marketplace asks of the extension: fields of package.json, the manifest of the .vsix, the pictures."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

LARGEST_PICTURE = 100_000  # bytes
REQUIRED = {"name", "displayName", "description", "version", "publisher", "license", "icon", "categories", "engines"}


@pytest.fixture
def extension(root: Path) -> Path:
    return root / "editors" / "vscode"


@pytest.fixture
def package(extension: Path) -> dict[str, Any]:
    return dict(json.loads((extension / "package.json").read_text("utf-8")))


def manifest_of(extension: Path) -> Callable[[dict[str, Any]], str]:
    """The function of pack.py, which is a script and lies in no package."""
    spec = importlib.util.spec_from_file_location("pack", extension / "pack.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[dict[str, Any]], str] = module._manifest
    return function


def test_the_manifest_says_what_the_package_says(extension: Path, package: dict[str, Any]) -> None:
    parsed = ElementTree.fromstring(manifest_of(extension)(package))
    namespace = {"": "http://schemas.microsoft.com/developer/vsx-schema/2011"}
    identity = parsed.find("Metadata/Identity", namespace)
    assert identity is not None
    assert (identity.get("Id"), identity.get("Version")) == (package["name"], package["version"])
    properties = {one.get("Id"): one.get("Value") for one in parsed.findall("Metadata/Properties/Property", namespace)}
    assert properties["Microsoft.VisualStudio.Code.Engine"] == package["engines"]["vscode"]
    assert properties["Microsoft.VisualStudio.Services.Content.Pricing"] == package["pricing"]


def test_every_command_and_setting_is_explained(extension: Path, package: dict[str, Any]) -> None:
    readme = (extension / "README.md").read_text("utf-8")
    for name in package["contributes"]["configuration"]["properties"]:
        assert f"`{name}`" in readme
