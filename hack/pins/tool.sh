#!/usr/bin/env bash
# tool.sh NAME prints the path of a program of the version below. The first call of a machine builds it, in a cache outside the
# checkout (OUTBOX_CACHE moves it); Go checks its modules against the checksum database.
set -euo pipefail

case ${1:-} in
  controller-gen) package=sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 ;;
  golangci-lint) package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 ;;
  helm) package=helm.sh/helm/v4/cmd/helm@v4.3.1 ;;
  govulncheck) package=golang.org/x/vuln/cmd/govulncheck@v1.9.0 ;;
  vulndb) # its data, which is a module too; VULNDB=latest takes the newest
    cd / && GOFLAGS=-mod=mod GOWORK=off go mod download -json golang.org/x/vulndb@"${VULNDB:-v0.0.0-20261105234957-e22db6528018}" |
      sed -n 's|^\t"Dir": "\(.*\)",$|\1/data/osv|p'
    exit
    ;;
  *) echo "usage: $0 controller-gen|golangci-lint|govulncheck|helm|vulndb" >&2; exit 2 ;;
esac
bin=${OUTBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-operator}/tools/${package##*/}-$(go env GOVERSION)
if [ ! -x "$bin/$1" ]; then
  echo "Building $package." >&2
  (cd / && GOWORK=off GOBIN=$bin/$$ go install "$package") >&2
  mv "$bin/$$/$1" "$bin/$1"
  rmdir "$bin/$$"
fi
echo "$bin/$1"
