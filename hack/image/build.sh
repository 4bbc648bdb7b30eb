#!/usr/bin/env bash
# build.sh TAG OUT.tar: builds the project's image, without a registry and without a container
# engine: /manager and /dispatcher, static, and nothing of this machine. Both have Mozilla's roots in them.
# The same checkout makes the same archive, byte for byte. VERSION is what the binaries call
# themselves; ../build.sh has its default. With an engine, the Dockerfile makes the same image.
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 TAG OUT.tar" >&2; exit 2; }
tag=$1
[[ $2 = /* ]] && out=$2 || out=$PWD/$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
GOOS=linux hack/build.sh "$root/"
cd hack/image
go run . "$tag" "$out" "$root" /manager
