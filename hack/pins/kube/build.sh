#!/usr/bin/env bash
# Builds Kubernetes and etcd from Go modules, in the versions that go.mod beside this file pins.
#
#   build.sh test   etcd, kube-apiserver, kubectl: what envtest needs
#   build.sh node   also kube-controller-manager, kube-scheduler, kubelet, kube-proxy
#
# Only what is missing is built, into a cache outside the checkout that is keyed by the versions.
# The last line on standard output is that directory; everything else goes to standard error.
# OUTBOX_CACHE moves the cache; it defaults to ~/.cache/outbox-operator. To build anew, remove it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

programs=(etcd kube-apiserver kubectl)
case ${1:-} in
  test) ;;
  node) programs+=(kube-controller-manager kube-scheduler kubelet kube-proxy) ;;
  *) echo "usage: $0 test|node" >&2; exit 2 ;;
esac

pinned() { awk -v module="$1" '$1 == module && $2 ~ /^v/ { print $2; exit }' go.mod; }
kube=$(pinned k8s.io/kubernetes)
etcd=$(pinned go.etcd.io/etcd/server/v3)
cache=${OUTBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-operator}
key=$(cat go.mod go.sum build.sh | cksum | cut -d' ' -f1)
bin=$cache/kube-$kube-$key/bin

missing() {
  local p
  for p in "${programs[@]}"; do [ -x "$bin/$p" ] || echo "$p"; done
}

# The server reports these, and clients compare them; unset, it calls itself v0.0.0-master.
versions() {
  local p minor=${kube#v1.}
  for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s=%s ' "$p.gitVersion" "$kube" "$p.gitMajor" 1 "$p.gitMinor" "${minor%%.*}" \
      "$p.gitTreeState" clean "$p.buildDate" 1970-01-01T00:00:00Z
  done
}

build() {
  local todo p packages=()
  todo=$(missing)
  [ -n "$todo" ] || return 0
  echo "Building" $todo "(Kubernetes $kube, etcd $etcd) from Go modules into $bin." >&2
  echo "The first time this downloads about 100 MB, takes 4 minutes (7 with a whole node) on two" \
    "cores, and leaves 3 GB (4 GB) in Go's build cache. Later runs take no time." >&2

  # The whole environment of the build is set here, so that the caller's does not matter.
  export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOWORK=off
  unset GOOS GOARCH GOEXPERIMENT
  tmp=$(mktemp -d "$bin/.building.XXXXXX") # global, for the trap
  trap 'rm -rf "$tmp"' EXIT
  for p in $todo; do
    if [ "$p" = etcd ]; then
      go build -ldflags '-s -w' -o "$tmp/etcd" go.etcd.io/etcd/server/v3
    else
      packages+=("k8s.io/kubernetes/cmd/$p")
    fi
  done
  if [ ${#packages[@]} != 0 ]; then
    go build -ldflags "-s -w $(versions)" -o "$tmp/" "${packages[@]}"
  fi
  mv "$tmp"/* "$bin/" # a rename: nobody ever sees half a binary
}

if [ -n "$(missing)" ]; then
  command -v go >/dev/null || { echo "$0: go is not in PATH; install the Go toolchain that go.mod asks for" >&2; exit 1; }
  mkdir -p "$bin"
  # A second run waits here for the first, and then finds nothing missing.
  if command -v flock >/dev/null; then
    exec 9>"$bin/.lock"
    flock -n 9 || { echo "Waiting for another build of Kubernetes to end: it holds $bin/.lock." >&2; flock 9; }
  fi
  build
fi
echo "$bin"
