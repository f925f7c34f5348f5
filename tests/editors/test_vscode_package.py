"""The VS Code extension's package: the manifest of the .vsix and documented settings."""

import json
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest


@pytest.fixture
def extension(root: Path) -> Path:
    return root / "editors" / "vscode"


@pytest.fixture
def package(extension: Path) -> dict[str, Any]:
    return dict(json.loads((extension / "package.json").read_text("utf-8")))


def test_the_manifest_says_what_the_package_says(extension: Path, package: dict[str, Any]) -> None:
    parsed = ElementTree.fromstring(runpy.run_path(str(extension / "pack.py"))["_manifest"](package))
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
