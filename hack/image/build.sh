#!/usr/bin/env bash
# build.sh TAG OUT.tar: builds the project's image, without a registry and without a container
# engine: /manager and /dispatcher, static, and the CA certificates of this machine if it has any.
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
for certs in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
  [ -r "$certs" ] || continue
  mkdir -p "$root/etc/ssl/certs"
  cp "$certs" "$root/etc/ssl/certs/ca-certificates.crt"
  break
done
cd hack/image
go run . "$tag" "$out" "$root" /manager
