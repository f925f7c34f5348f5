#!/bin/sh
# Build the wheel, install it without extras into an empty environment, and answer, complete and measure there.
# light_install.sh PYTHON
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LOCALDFLASH_HOME="$folder/home" HF_HUB_OFFLINE=1
rm -rf build/lib* build/bdist*  # setuptools would put what an earlier build left there into the wheel
"$1" -m pip wheel --quiet --no-deps --wheel-dir "$folder" .
"$1" -m venv "$folder/venv"
began=$(date +%s)
"$folder/venv/bin/pip" install --quiet --constraint constraints.txt "$folder"/localdflash-*.whl
cd "$folder"
printf 'def add(first, second):\n    ' >add.py
bin="$folder/venv/bin"
test -n "$("$bin/localdflash" chat --no-daemon -p hi)"
echo "pip install and the first answer: $(($(date +%s) - began)) s, $(du -sm venv | cut -f1) MB"
test -n "$("$bin/localdflash" complete --no-daemon add.py:2:5)"
"$bin/localdflash" models list >/dev/null
"$bin/localdflash" doctor
"$bin/localdflash" bench --limit 1 --json speed.json
if "$bin/localdflash" chat --no-daemon -p hi --backend llama.cpp; then exit 1; else test $? -eq 3; fi
