#!/usr/bin/env bash
# Build a base image from Debian's packages, for where no image registry is reachable: docker/base.sh NAME
set -euo pipefail
name=${1:?wanted a name for the image}
packages=$(paste -sd, "$(dirname "$0")/packages.txt")
if ! command -v mmdebstrap > /dev/null; then
    echo "base.sh: found no mmdebstrap; install it (apt install mmdebstrap)," \
        "or name a Debian image that is there: make cluster BASE=IMAGE" >&2
    exit 1
fi
# Into a file first: through a pipe, docker would import half a base.
archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
mmdebstrap --quiet --variant=minbase --format=tar --include="$packages" bookworm "$archive"
docker import "$archive" "$name" > /dev/null
