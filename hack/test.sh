#!/usr/bin/env bash
# test.sh [unit|e2e]: runs the tests, with all that they need. Without an argument: everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-all}
say() { printf '\n== %s\n' "$*"; }

if [ "$what" != e2e ]; then
  say "Tests on a real PostgreSQL, a real kube-apiserver and real brokers, all throw-away. The first run" \
    "builds or fetches them (10 minutes on two cores); then all of it takes about 9 minutes."
  KUBEBUILDER_ASSETS=$(hack/kube/build.sh test)
  export KUBEBUILDER_ASSETS
  go test -timeout 20m ./...
  (cd hack/image && go test ./...)
  (cd hack/bench && go test -timeout 20m ./...)
  say "The data plane again, with the race detector: about 7 minutes."
  go test -race -short -timeout 20m ./dispatcher/...
fi
if [ "$what" != unit ]; then
  say "The main job on a real cluster: pods, a killed pod, a stopped database and other troubles." \
    "The first run builds the cluster (3 minutes on two cores); then it takes about 6 minutes."
  OUTBOX_E2E=1 go test -count=1 -timeout 30m -v ./hack/e2e
fi
say "Done. Everything that the tests started is gone."
