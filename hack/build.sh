#!/usr/bin/env bash
# build.sh OUT [PACKAGE...]: builds the two commands of the image, or these packages, into OUT.
# It is the one place that has the flags of the build. VERSION is what the commands call themselves; it
# defaults to git's description of the checkout, and to dev without git. GOOS, GOARCH and GOFLAGS are
# go build's; TAGS are more build tags, such as nocloud. SYMBOLS=1 leaves the symbols in, for who looks for functions.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 OUT [PACKAGE...]" >&2; exit 2; }
[[ $1 = /* ]] && out=$1 || out=$PWD/$1
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
strip='-s -w'
[ -z "${SYMBOLS-}" ] || strip=
[ $# -gt 0 ] || set -- ./controllers/cmd/manager ./dispatcher/cmd/dispatcher
# grpcnotrace leaves out gRPC's pages for debugging: with their templates, which call methods by name, the
# linker keeps every method of every type.
CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags "grpcnotrace${TAGS:+,$TAGS}" -ldflags "$strip -X main.version=$version" -o "$out" "$@"
