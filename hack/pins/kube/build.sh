#!/usr/bin/env bash
# Provides Kubernetes and etcd: those of KUBEBUILDER_ASSETS, or else downloaded by checksum (downloads.txt), or else built from
# Go modules, in the versions that go.mod next to this file pins.
#
#   build.sh test   etcd, kube-apiserver, kubectl: what envtest needs
#   build.sh node   also kube-controller-manager, kube-scheduler, kubelet, kube-proxy
#
# Only what is missing is made, in a cache outside the checkout that is keyed by the versions.
# The last line on standard output is the directory; everything else goes to standard error.
# OUTBOX_CACHE moves the cache; it defaults to ~/.cache/outbox-operator. To start again, remove it.
# OUTBOX_KUBE_DOWNLOADS names another downloads.txt; an empty file, such as /dev/null, always builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

programs=(etcd kube-apiserver kubectl)
case ${1:-} in
  test) ;;
  node) programs+=(kube-controller-manager kube-scheduler kubelet kube-proxy) ;;
  *) echo "usage: $0 test|node" >&2; exit 2 ;;
esac

# missing DIR prints the programs that DIR does not have.
missing() {
  local p
  for p in "${programs[@]}"; do [ -x "$1/$p" ] || echo "$p"; done
}

if [ -n "${KUBEBUILDER_ASSETS-}" ] && [ -z "$(missing "$KUBEBUILDER_ASSETS")" ]; then
  echo "$KUBEBUILDER_ASSETS"
  exit
fi

pinned() { awk -v module="$1" '$1 == module && $2 ~ /^v/ { print $2; exit }' go.mod; }
kube=$(pinned k8s.io/kubernetes)
etcd=$(pinned go.etcd.io/etcd/server/v3)
cache=${OUTBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-operator}
bin=$cache/kube-$kube-$(cat go.mod go.sum | cksum | cut -d' ' -f1)/bin

# download takes what it can of the archives for this system. Where they cannot be reached, it fails at once.
download() {
  local system sum url names name bits
  command -v curl >/dev/null || return 0
  while read -r system sum url names; do
    [ "$system" = "$(uname -s)-$(uname -m)" ] || continue
    [[ " $(missing "$bin" | tr '\n' ' ')" =~ \ (${names// /|})\  ]] || continue
    bits=$((${#sum} * 4))
    curl --silent --fail --location --connect-timeout 3 --speed-limit 50000 --speed-time 10 --output "$tmp/archive" "$url" || continue
    if ! echo "$sum  $tmp/archive" | { "sha${bits}sum" --check --status 2>/dev/null || shasum -a "$bits" --check --status 2>/dev/null; }; then
      echo "$url has another checksum than downloads.txt; it is not used." >&2
      continue
    fi
    mkdir "$tmp/unpacked"
    tar -xzf "$tmp/archive" -C "$tmp/unpacked"
    for name in $names; do
      find "$tmp/unpacked" -type f -name "$name" -perm -u+x -exec mv {} "$bin/" \;
    done
    rm -rf "$tmp/unpacked" "$tmp/archive"
    echo "Downloaded $names from $url into $bin." >&2
  done <"${OUTBOX_KUBE_DOWNLOADS:-downloads.txt}"
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
  todo=$(missing "$bin")
  [ -n "$todo" ] || return 0
  command -v go >/dev/null || { echo "$0: go is not in PATH; install the Go toolchain of go.mod" >&2; exit 1; }
  echo "Building" $todo "(Kubernetes $kube, etcd $etcd) from Go modules into $bin." >&2
  echo "The first time this downloads about 100 MB, takes 8 to 12 minutes for a whole node on two" \
    "cores, and leaves 3 GB (4 GB) in Go's build cache. Later runs take no time." >&2

  # The whole environment of the build is set here, so that the caller's does not matter.
  export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOWORK=off
  unset GOOS GOARCH GOEXPERIMENT
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
  mv "$tmp"/* "$bin/" # a rename: no process sees half a binary
}

if [ -n "$(missing "$bin")" ]; then
  mkdir -p "$bin"
  # A second run waits here for the first, and then finds nothing missing.
  if command -v flock >/dev/null; then
    exec 9>"$bin/.lock"
    flock -n 9 || { echo "Waiting for another run to end: it holds $bin/.lock." >&2; flock 9; }
  fi
  tmp=$(mktemp -d "$bin/.making.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  download
  build
fi
echo "$bin"
