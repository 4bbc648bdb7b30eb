#!/usr/bin/env bash
# build.sh: what a node needs in addition to Kubernetes: CoreDNS and the pause image, built into the cache;
# containerd and its like, from Debian's packages. The last line on standard output is the
# directory of what was built.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$HERE"

# program:package
needs=(containerd:containerd runc:runc nft:nftables ip:iproute2 openssl:openssl)
packages=()
for need in "${needs[@]}"; do
  command -v "${need%:*}" >/dev/null || packages+=("${need#*:}")
done
[ -x /usr/lib/cni/ptp ] || [ -x /opt/cni/bin/ptp ] || packages+=(containernetworking-plugins)
if [ ${#packages[@]} != 0 ]; then
  command -v apt-get >/dev/null || cannot "A cluster needs ${packages[*]}: install them, or kind, with a Docker or Podman that runs."
  say "installing Debian's packages ${packages[*]}: a node needs them"
  {
    apt-get update -q &&
      DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
  } >&2 || cannot "A cluster needs ${packages[*]}, and apt-get could not install them: see above."
  # The package starts a containerd of its own, which is not needed: a node runs its own.
  [[ " ${packages[*]} " != *" containerd "* ]] || systemctl disable --now containerd >/dev/null 2>&1 || true
fi

key=$(cat go.mod go.sum coredns/*.go pause/*.go ../release/pack.go build.sh | cksum | cut -d' ' -f1)
dir=$CACHE/node-$key
if [ ! -d "$dir" ]; then
  command -v go >/dev/null || fail "go is not in PATH; install the version of go.mod"
  say "building CoreDNS and the pause image into $dir"
  mkdir -p "$CACHE"
  new=$(mktemp -d "$dir.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOWORK=off # as hack/pins/kube builds: they share packages
  unset GOOS GOARCH GOEXPERIMENT
  go build -ldflags '-s -w' -o "$new/" ./coredns
  go build -ldflags '-s -w' -o "$new/pause/" ./pause
  (cd ../.. && go run ./hack/release pack "$PAUSE_IMAGE" "$new/pause.tar" "$new/pause" /pause) >&2
  chmod 755 "$new"
  mv -T "$new" "$dir" 2>/dev/null || [ -d "$dir" ] # another run was faster
fi
echo "$dir"
