#!/usr/bin/env bash
# test.sh [unit|e2e|majors [MAJOR...]]: runs the tests, with all that they need. Without an argument:
# everything, with the oldest and the newest major of PostgreSQL. majors: the tests of the database on all
# majors, or on some. LABELS picks specs of the e2e part. With CI=true, what is missing is a failure; without it, the tests that need it are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
what=${1:-all}
say() { printf '\n== %s\n' "$*"; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# twice COMMAND: in CI, tests that fail run once more, and the log keeps both. Go has cached what passed, so the
# second run is of the packages that failed. What passes only then is to be mended all the same: search a log for
# "Once more".
twice() {
  "$@" && return
  [ -n "${CI-}" ] || return 1
  say "Once more, for the packages that failed above: $*"
  "$@"
}

# quiet COMMAND: runs go test -v. Of a success it shows what the tests measured, of a failure what failed.
quiet() {
  if ! "$@" >"$log" 2>&1; then
    grep -vE '^ *(=== |--- (PASS|SKIP))' "$log" >&2
    return 1
  fi
  grep -E '^(ok|\?)' "$log"
  sed -nE '/beside a hot key/d; s/.*_test\.go:[0-9]+: (.*(WAL|buffers|CTEs).*)/  \1/p' "$log"
}

# on_major MAJOR [-short]: the tests of what has statements of its own on a pinned build of PostgreSQL.
on_major() {
  export OUTBOX_TEST_PG=$1
  twice quiet go test -v -timeout 20m ${2-} ./migrations ./dispatcher/pgstore ./dispatcher/deadletters/pgreader \
    ./migrations/adopt ./dispatcher/{producer,retention,journal,replay,notify,consumer}
  # What an event costs, which -short leaves out; without the million rows.
  [ -z "${2-}" ] || twice quiet go test -v -timeout 20m -run 'Budget|Plan' ./dispatcher/pgstore
  unset OUTBOX_TEST_PG
}

# has_builds reports whether this machine can have the pinned builds.
has_builds() {
  [ "$(uname -sm)" = 'Linux x86_64' ] && { command -v mvn >/dev/null || [ "$(id -u)" = 0 ]; }
}

mapfile -t majors < <(sed -nE 's/.*-amd64-([0-9]+)\..*/\1/p' hack/servers/postgres/majors.sha256)

if [ "$what" = majors ]; then
  shift
  [ $# -gt 0 ] || set -- "${majors[@]}"
  for major in "$@"; do
    say "PostgreSQL $major: tables, statements and order per key (about 4 minutes on two cores)."
    on_major "$major"
  done
fi
if [ "$what" = all ] || [ "$what" = unit ]; then
  say "Tests on a real PostgreSQL, a real kube-apiserver and real brokers, all throw-away. The first run" \
    "builds or fetches them (10 minutes on two cores); then all of it takes about 25 minutes."
  KUBEBUILDER_ASSETS=$(hack/pins/kube/build.sh test)
  export KUBEBUILDER_ASSETS
  (cd hack && go tool -modfile=helm/go.mod -n helm >/dev/null) # built before the clock of a test runs
  twice go test -timeout 20m ./...
  (cd hack/image && twice go test ./...)
  (cd hack/gitops && twice go test -count=1 ./...) # it reads files beyond its module, which Go does not watch
  (cd hack/bench && twice go test -timeout 20m ./...)
  say "The data plane again, with the race detector: about 12 minutes."
  twice go test -race -short -timeout 20m ./dispatcher/...
  if [ -n "${CI-}" ] || has_builds; then
    for major in "${majors[0]}" "${majors[-1]}"; do
      say "PostgreSQL $major: tables, statements and order per key (about 4 minutes)."
      on_major "$major" -short
    done
  else
    say "PostgreSQL ${majors[0]} and ${majors[-1]} are left out: their builds take Linux on amd64 and Maven (mvn)."
  fi
fi
if [ "$what" = all ] || [ "$what" = e2e ]; then
  say "The main job on a real cluster: pods, a killed pod, a stopped database and other troubles." \
    "The first run builds the cluster (3 minutes on two cores); then it takes about 20 minutes."
  OUTBOX_E2E=1 go test -count=1 -timeout 60m -v ./hack/e2e -ginkgo.v ${CI:+-ginkgo.flake-attempts=2} ${LABELS:+-ginkgo.label-filter="$LABELS"}
fi
say "Done. Everything that the tests started is gone."
