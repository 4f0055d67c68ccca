#!/usr/bin/env bash
# Gather the wheels of the project's dependencies, with this machine's own pip settings, so that building an image needs
# no registry: docker/wheels.sh FOLDER MACHINE
set -euo pipefail
folder=${1:?wanted a folder} machine=${2:?wanted a machine such as x86_64}
python=${PYTHON:-python3}
cd "$(dirname "$0")/.."
rm -rf "$folder.partial"
mkdir -p "$folder.partial"
"$python" - > "$folder.partial/wanted.txt" << 'END'
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")
END
cp constraints.txt "$folder.partial/"
if cmp -s "$folder"{,.partial}/wanted.txt && cmp -s "$folder"{,.partial}/constraints.txt; then
    rm -rf "$folder.partial"
    exit
fi
# pip does not know that what asks for an older glibc suits as well.
platforms=(--platform "manylinux2014_$machine")
for glibc in $(seq 5 36); do
    platforms+=(--platform "manylinux_2_${glibc}_$machine")
done
"$python" -m pip --disable-pip-version-check download --quiet --dest "$folder.partial" --only-binary=:all: \
    --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none "${platforms[@]}" \
    --constraint constraints.txt --requirement "$folder.partial/wanted.txt"
rm -rf "$folder"
mv "$folder.partial" "$folder"
