"""Write localdflash-VERSION.vsix: a zip of the extension with the two XML files that VS Code expects.

`python -P editors/vscode/pack.py`, after `npm run bundle`. The same sources give the same bytes: files are sorted, have
a fixed time, and are stored without compression, whose result depends on the version of zlib.
"""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

HERE = Path(__file__).parent
TYPES = {
    ".js": "application/javascript",
    ".json": "application/json",
    ".md": "text/markdown",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".vsixmanifest": "text/xml",
}


def main() -> None:
    """Write the .vsix file and print its path."""
    package = json.loads((HERE / "package.json").read_text("utf-8"))
    for unneeded in ("scripts", "devDependencies"):
        del package[unneeded]
    files = {
        "extension.vsixmanifest": _manifest(package).encode(),
        "[Content_Types].xml": _content_types().encode(),
        "extension/package.json": json.dumps(package, indent=2, ensure_ascii=False).encode(),
        "extension/LICENSE.txt": (HERE.parents[1] / "LICENSE").read_bytes(),
        "extension/THIRD_PARTY.txt": _third_party().encode(),
    }
    for pattern in ("dist/extension.js", "README.md", "CHANGELOG.md", "media/*.png", "walkthrough/*"):
        for path in HERE.glob(pattern):
            files[f"extension/{path.relative_to(HERE).as_posix()}"] = path.read_bytes()
    target = HERE / f"{package['name']}-{package['version']}.vsix"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # with its default time, 1 January 1980
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    sys.stdout.write(f"{target}\n")


def _manifest(package: dict[str, Any]) -> str:
    """Return the manifest that VS Code and a marketplace read."""
    properties = {
        "Microsoft.VisualStudio.Code.Engine": package["engines"]["vscode"],
        "Microsoft.VisualStudio.Code.ExtensionKind": ",".join(package["extensionKind"]),
        "Microsoft.VisualStudio.Code.ExecutesCode": "true",
        "Microsoft.VisualStudio.Services.Branding.Color": package["galleryBanner"]["color"],
        "Microsoft.VisualStudio.Services.Branding.Theme": package["galleryBanner"]["theme"],
        "Microsoft.VisualStudio.Services.Content.Pricing": package["pricing"],
        "Microsoft.VisualStudio.Services.EnableMarketplaceQnA": str(package["qna"]).lower(),
        "Microsoft.VisualStudio.Services.GitHubFlavoredMarkdown": "true",
    }
    flags = "Public Preview" if package.get("preview") else "Public"
    assets = {
        "Code.Manifest": "package.json",
        "Content.Details": "README.md",
        "Content.Changelog": "CHANGELOG.md",
        "Content.License": "LICENSE.txt",
    }
    listed = "\n".join(f"<Property Id={quoteattr(key)} Value={quoteattr(value)}/>" for key, value in properties.items())
    about = "\n".join(
        f'<Asset Type="Microsoft.VisualStudio.{kind}" Path="extension/{path}" Addressable="true"/>'
        for kind, path in assets.items()
    )
    return f"""<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
<Metadata>
<Identity Language="en-US" Id={quoteattr(package["name"])} Version={quoteattr(package["version"])}
 Publisher={quoteattr(package["publisher"])}/>
<DisplayName>{escape(package["displayName"])}</DisplayName>
<Description xml:space="preserve">{escape(package["description"])}</Description>
<Tags>{escape(",".join(package["keywords"]))}</Tags>
<Categories>{escape(",".join(package["categories"]))}</Categories>
<GalleryFlags>{flags}</GalleryFlags>
<Properties>
{listed}
</Properties>
<License>extension/LICENSE.txt</License>
<Icon>extension/{escape(package["icon"])}</Icon>
</Metadata>
<Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation>
<Dependencies/>
<Assets>
{about}
<Asset Type="Microsoft.VisualStudio.Services.Icons.Default" Path="extension/{package["icon"]}" Addressable="true"/>
</Assets>
</PackageManifest>
"""


def _content_types() -> str:
    listed = "".join(f'<Default Extension="{suffix}" ContentType="{kind}"/>' for suffix, kind in TYPES.items())
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{listed}</Types>\n'
    )


def _third_party() -> str:
    """Return the licences of the packages in the bundle, which esbuild lists in dist/meta.json."""
    inputs = json.loads((HERE / "dist/meta.json").read_text("utf-8"))["inputs"]
    folders = {HERE / Path(*Path(name).parts[:2]) for name in inputs if name.startswith("node_modules/")}
    texts = ["dist/extension.js contains:"]
    for folder in sorted(folders):
        about = json.loads((folder / "package.json").read_text("utf-8"))
        (licence,) = (path for path in folder.iterdir() if path.stem.lower() in ("license", "licence"))
        texts.append(f"{about['name']} {about['version']} ({about['license']})\n\n{licence.read_text('utf-8').strip()}")
    return f"\n\n{'-' * 80}\n\n".join(texts) + "\n"


if __name__ == "__main__":
    main()
