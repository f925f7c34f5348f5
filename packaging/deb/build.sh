#!/bin/sh
# Build localdflash_VERSION_ARCHITECTURE.deb in the current folder: build.sh WHEEL
# PYTHON: see ../stage.sh. Debian needs python3-venv for it. The package fits the Debian or Ubuntu release that it was built on.
# Tried on Debian 12, x86-64: built, `dpkg -i`, `localdflash chat --no-daemon -p hi`, `dpkg --purge`. Not tried: Ubuntu,
# ARM64, the unit in a session, completions in a shell.
set -eu
wheel=$1
here=$(cd "$(dirname "$0")" && pwd)
version=$(basename "$wheel" | cut -d - -f 2)
python=$("${PYTHON:-/usr/bin/python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
next=$("${PYTHON:-/usr/bin/python3}" -c 'import sys; print("%d.%d" % (sys.version_info[0], sys.version_info[1] + 1))')
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
"$here/../stage.sh" "$wheel" "$root"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
install -Dm644 "$here/../../LICENSE" "$root/usr/share/doc/localdflash/copyright"
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: localdflash
Version: $version
Architecture: $architecture
Maintainer: the authors of localdflash <localdflash@localhost>
Depends: python3 (>= $python), python3 (<< $next), libc6 (>= 2.28), libstdc++6
Recommends: libpam-systemd
Installed-Size: $(du -sk "$root" | cut -f 1)
Section: devel
Priority: optional
Description: local coding assistant: chat, completions, an API
 A quantized model and a drafter that makes it fast, on this machine alone.
 A small model is included.
END
dpkg-deb --root-owner-group -Zzstd --build "$root" "localdflash_${version}_$architecture.deb"
