#!/usr/bin/env bash
# Makes FOLDER a virtual environment of the newest Python that the newest jax installs on: nothing is pinned here.
# Without a Python newer than 3.11 it says so and makes none.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

# "3.13 /path/to/python" for every Python after 3.11, the newest first. A shim of pyenv may answer that it has none.
list_pythons() {
    local name found
    for name in $(compgen -c python3. | sort -u) ~/.pyenv/versions/*/bin/python3.*; do
        [[ ${name##*/} =~ ^python3\.[0-9]+$ ]] && found=$(type -P "$name") || continue
        "$found" -c 'import sys, venv, ensurepip
if sys.version_info[:2] > (3, 11): print("3.%d" % sys.version_info[1], sys.executable)' 2> /dev/null || true
    done | sort --version-sort --reverse | uniq
}

install() {
    rm -rf "$folder"
    "$1" -m venv "$folder" &&
        "$folder/bin/pip" --disable-pip-version-check install --quiet --editable '.[test]' &&
        touch "$folder/installed"
}

if [[ $folder/installed -nt pyproject.toml ]]; then
    exit
fi
mapfile -t pythons < <(list_pythons)
if [[ ${#pythons[@]} == 0 ]]; then
    echo "there is no Python newer than 3.11 here: the tests with the newest are skipped"
    exit
fi
for python in "${pythons[@]}"; do
    if install "${python#* }"; then
        exit
    fi
    echo "hostmesh does not install on Python ${python% *}"
done
exit 1
