#!/bin/sh
# Put localdflash below ROOT as a package installs it: stage.sh WHEEL ROOT
# An environment in /opt/localdflash, /usr/bin/localdflash, the man page, shell completions and the systemd user unit.
# PYTHON (/usr/bin/python3) is what the environment uses on the target machine: the same minor version must be there.
# Its pip, which `localdflash models pull` needs later, fetches the dependencies in the versions of constraints.txt.
set -eu
wheel=$1 root=$2
tree=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$root/usr/bin" "$root/opt"
root=$(cd "$root" && pwd)
opt="$root/opt/localdflash"
"${PYTHON:-/usr/bin/python3}" -m venv "$opt"
"$opt/bin/python" -m pip install --quiet --no-compile --constraint "$tree/constraints.txt" "$wheel"
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
"$opt/bin/python" -P "$tree/lab/scripts/manual.py" "$files"
# Programs of pip name the folder where they were installed. One is needed, and runs in /opt.
find "$opt/bin" -type f -delete
sed -i "s|$root||g" "$opt/pyvenv.cfg"
find "$opt" -name direct_url.json -delete
# Some packages contain templates that are no Python.
"$opt/bin/python" -m compileall -f -qq -s "$root" -p / "$opt/lib" >/dev/null || true
cat >"$root/usr/bin/localdflash" <<'END'
#!/bin/sh
exec /opt/localdflash/bin/python -P -c 'import sys; from localdflash.cli import main; sys.exit(main())' "$@"
END
chmod 755 "$root/usr/bin/localdflash"
gzip -9n "$files/localdflash.1"
install -Dm644 "$files/localdflash.1.gz" "$root/usr/share/man/man1/localdflash.1.gz"
install -Dm644 "$files/localdflash.bash" "$root/usr/share/bash-completion/completions/localdflash"
install -Dm644 "$files/_localdflash" "$root/usr/share/zsh/site-functions/_localdflash"
install -Dm644 "$files/localdflash.fish" "$root/usr/share/fish/vendor_completions.d/localdflash.fish"
install -Dm644 "$files/localdflash.service" "$root/usr/lib/systemd/user/localdflash.service"
