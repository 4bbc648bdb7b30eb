#!/usr/bin/env bash
# test.sh [PART...]: runs tests, with all that they need. Without an argument: data, control, tools and cluster.
#
#   data      the data plane with the race detector on the oldest PostgreSQL; long simulations without it; the budgets
#             of plans and WAL on the newest
#   control   the control plane on a real kube-apiserver, and what compares pages, charts and rules with the code
#   tools     what only developers run, where its folder differs from main
#   cluster   the main job on a real cluster: one path for each behaviour
#   e2e       all specs on a real cluster, or those that LABELS picks
#   all       everything, without Go's cache: all majors of PostgreSQL, all specs, all tools
#
# With CI=true, what a test needs and cannot have is a failure, and what failed runs once more; without it, the tests that
# need it are skipped. OUTBOX_TEST_PG chooses the PostgreSQL of all parts.
set -euo pipefail
[ "${BASH_VERSINFO[0]}" -ge 4 ] || { echo "This bash is $BASH_VERSION; install bash 4 or later (on macOS: brew install bash) and run this again." >&2; exit 1; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS="${GOFLAGS-} -trimpath" # Go's cache then serves other checkouts too
export CGO_ENABLED=0                   # as the image is built: what both need is compiled once
mapfile -t majors < <(sed -nE 's/.*linux-amd64-([0-9]+)\..*/\1/p' hack/servers/postgres/builds.sha256)
watching=(./hack ./hack/chart ./hack/demo ./hack/e2e/scenario ./hack/fields ./hack/internal/... ./hack/testing/...) # they compare the rest with rules
database=(./migrations/... ./dispatcher/{pgstore,producer,consumer} ./dispatcher/deadletters/pgreader ./dispatcher/internal/{journal,notify,replay,retention})
count='' # -count=1 leaves out Go's cache
parallel="-parallel $((3 * $(getconf _NPROCESSORS_ONLN)))" # those that may wait together do; Ginkgo does not take it

say() { printf '\n== %s\n' "$*"; }

log=$(mktemp)
times='' flaky='' failed=''
finish() {
  rm -f "$log"
  [ -z "$times" ] || say "What took how long:"$'\n'"$times"
  [ -z "$flaky" ] || say "Passed only at the second try:"$'\n'"$flaky"
}
trap finish EXIT

# step WHAT COMMAND...: runs a step and keeps how long it took. Of everything, what follows runs after a failure too.
step() {
  local begin=$SECONDS code=0
  say "$1"
  "${@:2}" || code=$? # which turns set -e off: a command of a step returns the code of what failed in it
  times+=$(printf '  %2d:%02d  %s' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$1")$'\n'
  [ $code = 0 ] || failed+="  $1"$'\n'
  [ -n "$count" ] || return $code
}

# tests ARGUMENT...: go test. In CI, what failed runs once more: Go has cached what passed.
tests() {
  local failed
  run "$@" && return
  [ -n "${CI-}" ] && [ -z "$count" ] || return 1
  failed=$(names)
  say "Once more, for what failed above"
  run "$@" && flaky+=$failed$'\n'
}
run() { go test -timeout 20m $count "$@" 2>&1 | tee "$log" | shown; }
shown() { cat; }

# names prints the tests and specs that failed, and their packages.
names() {
  sed -E 's/\x1b\[[0-9;]*m//g' "$log" |
    sed -nE 's/^ *--- FAIL: ([^ ]+).*/  \1/p; s/^ *\[FAIL\] /  /p; s/^FAIL\t([^ \t]+)\t.*/  in \1/p' | awk '!seen[$0]++'
}

# measured COMMAND...: of go test -v, shows what the tests measured, or all that is not about success when one failed.
measured() {
  local code=0
  shown() { grep -E '^(ok|FAIL)|_test\.go:[0-9]+: .*(WAL|buffers|CTEs)' || true; }
  "$@" -v || code=$?
  shown() { cat; }
  [ $code = 0 ] || grep -vE '^ *(=== |--- (PASS|SKIP))' "$log"
  return $code
}

# on MAJOR COMMAND...: on the pinned build of a major, where each has one.
on() {
  local major=$1
  [ "$(uname -sm)" = 'Linux x86_64' ] || major=
  OUTBOX_TEST_PG=${OUTBOX_TEST_PG:-$major} "${@:2}"
}

# race COMMAND...: with the race detector, which takes a C compiler. By default each of its processes sleeps a second at its
# end, and the tests start hundreds.
race() {
  if [ "$(CGO_ENABLED='' go env CGO_ENABLED)" = 1 ]; then
    GORACE="atexit_sleep_ms=0 ${GORACE-}" CGO_ENABLED=1 "$@" -race
  else
    echo "Without the race detector: there is no C compiler."
    "$@"
  fi
}

budgets() { measured tests -run 'Budget|Plan' ./dispatcher/pgstore ./dispatcher/deadletters/pgreader ./migrations; }

# on_api_server PACKAGE...: tests, some of which need a kube-apiserver and helm.
on_api_server() {
  KUBEBUILDER_ASSETS=$(hack/pins/kube/build.sh test) || return
  export KUBEBUILDER_ASSETS
  hack/pins/tool.sh helm >/dev/null || return # built before the clock of a test runs
  tests "$@"
}

# in_module FOLDER: the tests of a module of its own.
in_module() { (cd "$1" && go test -timeout 20m $count ./...); }

# changed FOLDER: whether a folder differs from main, or on main from the commit before.
changed() {
  git diff --quiet "$base" -- "$1" && [ -z "$(git ls-files --others --exclude-standard "$1")" ] && return 1 || return 0
}

# changed_tools runs the tests of what only developers run, where a folder differs.
changed_tools() {
  local base tool code=0 packages=()
  base=$(git merge-base HEAD "${BASE:-origin/main}" 2>/dev/null || git rev-parse HEAD)
  [ "$base" != "$(git rev-parse HEAD)" ] || base=HEAD^
  if ! git rev-parse --quiet --verify "$base" >/dev/null; then
    echo "There is no commit to compare with: left to make test-all."
    return
  fi
  for tool in hack/{chaos,scale,readers,pins/krew} hack/servers/*/; do
    ! changed "$tool" || packages+=("./$tool")
  done
  echo "They differ from $(git rev-parse --short "$base"): ${packages[*]:-none}"
  [ ${#packages[@]} = 0 ] || on_api_server "${packages[@]}" || code=$?
  for tool in hack/{image,bench}; do
    ! changed "$tool" || in_module "$tool" || code=$?
  done
  return $code
}

# cluster LABELS: specs on a real cluster.
cluster() {
  local code=0
  OUTBOX_E2E=1 go test -count=1 -timeout 60m -v ./hack/e2e -ginkgo.v -ginkgo.no-color ${1:+-ginkgo.label-filter="$1"} \
    $([ -z "${CI-}" ] || [ -n "$count" ] || echo -ginkgo.flake-attempts=2) 2>&1 | tee "$log" || code=$?
  local names
  names=$(awk '/^-+$/ { getline; spec = $0 } /\[FLAKEY TEST/ { print "  " spec }' "$log")
  flaky+=${names:+$names$'\n'}
  return $code
}

# steady_times gives each file that is as in git's index a time that its content decides, and folders one time. Go caches a
# test with the times of the files that it opens, and a fresh checkout has those of the checkout.
steady_times() {
  [ "$(uname -s)" = Linux ] || return 0
  git rev-parse --is-inside-work-tree >/dev/null 2>&1 || return 0 # an archive, no git, or a folder of another user
  local file meta time
  local -A is changed
  while read -r time file; do is[$file]=$time; done < <(git ls-files -z | xargs -0 stat -c '%Y %n' 2>/dev/null)
  while read -r file; do changed[$file]=1; done < <(git ls-files -m)
  while IFS=$'\t' read -r meta file; do
    meta=${meta#* }
    time=$((1000000000 + 16#${meta:0:7}))
    [ -n "${changed[$file]-}" ] || [ "${is[$file]-$time}" = $time ] || touch -hcd @$time "$file"
  done < <(git ls-files -s)
  git ls-files -z | xargs -0 dirname -z | sort -zu | xargs -0 touch -cd @1000000000
  git update-index -q --refresh || true # what differs
}

data() {
  step "The data plane, on PostgreSQL ${majors[0]}" race on "${majors[0]}" tests $parallel -short ./dispatcher/... ./migrations/...
  step "Long simulations of the engine" tests -run TestLong ./dispatcher/engine
  step "Budgets of plans and WAL, on PostgreSQL ${majors[-1]}" on "${majors[-1]}" budgets
}

control() {
  step "The control plane, on a real kube-apiserver" on_api_server ./api/... ./config/... ./controllers/... "${watching[@]}"
  step "Argo CD's health check" in_module hack/gitops
}

tools() { step "Tools that changed" changed_tools; }

everything() {
  count=-count=1
  data
  step "All packages, on PostgreSQL ${majors[-1]}" on "${majors[-1]}" on_api_server ./...
  for major in "${majors[@]:1:${#majors[@]}-2}"; do
    step "PostgreSQL $major: tables, statements and order per key" on "$major" tests $parallel -short "${database[@]}"
    step "Budgets of plans and WAL, on PostgreSQL $major" on "$major" budgets
  done
  for module in hack/{gitops,image,bench}; do step "$module" in_module $module; done
  step "All specs on a real cluster" cluster ''
}

steady_times
[ $# -gt 0 ] || set -- data control tools cluster
for part in "$@"; do
  case $part in
    data | control | tools) $part ;;
    cluster) OUTBOX_E2E_DOWNTIME=${OUTBOX_E2E_DOWNTIME:-20s} step "The main job on a real cluster" cluster 'main || stop || troubles || security || upgrade' ;;
    e2e) step "Specs on a real cluster" cluster "${LABELS-}" ;;
    all) everything ;;
    *) echo "usage: $0 [data|control|tools|cluster|e2e|all]..." >&2; exit 2 ;;
  esac
done
if [ -n "$failed" ]; then
  say "Failed:"$'\n'"$failed"
  exit 1
fi
say "Done. Everything that the tests started is gone."
