#!/usr/bin/env bash
# build.sh TAG OUT.tar: builds the project's image, without a registry and without a container
# engine: /manager and /dispatcher, static, and the CA certificates of this machine if it has any.
# The same checkout makes the same archive, byte for byte. VERSION is what the binaries call
# themselves; it defaults to git's description of the checkout. With an engine, the Dockerfile
# makes the same image; it says what grpcnotrace is for.
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 TAG OUT.tar" >&2; exit 2; }
tag=$1
[[ $2 = /* ]] && out=$2 || out=$PWD/$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
CGO_ENABLED=0 GOOS=linux GOFLAGS=-buildvcs=false go build -trimpath -tags grpcnotrace -ldflags "-s -w -X main.version=$version" \
  -o "$root/" ./controllers/cmd/manager ./dispatcher/cmd/dispatcher
for certs in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
  [ -r "$certs" ] || continue
  mkdir -p "$root/etc/ssl/certs"
  cp "$certs" "$root/etc/ssl/certs/ca-certificates.crt"
  break
done
cd hack/image
go run . "$tag" "$out" "$root" /manager
