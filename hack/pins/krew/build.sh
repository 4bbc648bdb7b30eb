#!/usr/bin/env bash
# build.sh VERSION OUT [OS/ARCH...]: builds kubectl outbox for each platform as krew wants it, into OUT: an archive with
# the program and the licence, and krew's manifest outbox.yaml with the archives' checksums. VERSION is such as v1.2.3.
# Nothing is published: the manifest's addresses are those of a release of that version, which is made by hand.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 VERSION OUT [OS/ARCH...]" >&2; exit 2; }
version=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || { echo "$version is not a version; give one such as v1.2.3" >&2; exit 2; }
[ $# -gt 0 ] || set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cp LICENSE "$root/"
sed "s/VERSION/$version/" hack/pins/krew/outbox.yaml >"$out/outbox.yaml"
for platform in "$@"; do
  os=${platform%/*} arch=${platform#*/} program=kubectl-outbox
  [ "$os" = windows ] && program=kubectl-outbox.exe
  VERSION=$version GOOS=$os GOARCH=$arch hack/build.sh "$root/$program" ./controllers/cmd/kubectl-outbox
  archive=kubectl-outbox_${version}_${os}_$arch.tar.gz
  tar -C "$root" -czf "$out/$archive" "$program" LICENSE
  rm "$root/$program"
  cat >>"$out/outbox.yaml" <<END
  - selector: {matchLabels: {os: $os, arch: $arch}}
    uri: https://github.com/outbox-operator/outbox-operator/releases/download/$version/$archive
    sha256: $(sha256sum "$out/$archive" | cut -d ' ' -f 1)
    bin: $program
END
done
ls "$out"
