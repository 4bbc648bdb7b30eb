#!/usr/bin/env bash
# test.sh [PART...]: runs tests, with all that they need. Without an argument: data, control, tools and cluster.
#
#   data      the data plane on the oldest PostgreSQL, with the race detector where most goroutines are; long simulations;
#             the budgets of plans and WAL on the newest. Adoption, M10, keys under fire and failovers run where their
#             folder or the migrations differ from main
#   control   the control plane on a real kube-apiserver, and what compares pages, charts and rules with the code
#   tools     what only developers run, where its folder differs from main
#   cluster   the main job, a stop and an upgrade on a real cluster
#   e2e       all specs on a real cluster, or those that LABELS picks
#   modules   what has a go.mod of its own, without Go's cache
#   all       everything, without Go's cache: all majors of PostgreSQL, all specs, all tools, in two groups side by side
#
# Each part runs, also after another one failed. The end lists what failed, with the commands that run it alone. With
# CI=true, what a test needs and cannot have is a failure; without it, the tests that need it are skipped.
# OUTBOX_TEST_PG chooses the PostgreSQL of all parts.
set -euo pipefail
[ "${BASH_VERSINFO[0]}" -ge 4 ] || { echo "This bash is $BASH_VERSION; install bash 4 or later (on macOS: brew install bash) and run this again." >&2; exit 1; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export GOFLAGS="${GOFLAGS-} -trimpath" # Go's cache then serves other checkouts too
export CGO_ENABLED=0                   # as the image is built: what both need is compiled once
mapfile -t majors < <(sed -nE 's/.*linux-amd64-([0-9]+)\..*/\1/p' hack/servers/postgres/builds.sha256)
watching=(./hack ./hack/chart ./hack/dashboards ./hack/demo ./hack/e2e/scenario ./hack/fields ./hack/internal/... ./hack/testing/...) # they compare the rest with rules
database=(./migrations/... ./dispatcher/{pgstore,clienttest/...} ./dispatcher/deadletters/pgreader ./dispatcher/internal/{journal,notify,replay,retention})
racing=(./dispatcher/{engine,pgstore,clienttest/...} ./dispatcher/internal/cli) # with the race detector
count='' # -count=1 leaves out Go's cache
parallel="-parallel $((3 * $(getconf _NPROCESSORS_ONLN)))" # those that may wait together do; Ginkgo does not take it

say() { printf '\n== %s\n' "$*"; }

log=$(mktemp)
times='' failed=''
trap 'rm -f "$log"*' EXIT

# step WHAT COMMAND...: runs a step, and keeps how long it took and what failed.
step() {
  local begin=$SECONDS code=0 alone
  say "$1"
  : >"$log"
  "${@:2}" || code=$? # which turns set -e off: a command of a step returns the code of what failed in it
  times+=$(printf '  %2d:%02d  %s' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$1")$'\n'
  [ $code != 0 ] || return 0
  alone=$(commands)
  failed+="  $1"$'\n'"${alone:-    see its output above}"$'\n'
}

# tests ARGUMENT...: go test. The log begins with the command to which commands adds a package.
tests() {
  local name flag how=''
  for name in OUTBOX_E2E OUTBOX_TEST_PG; do [ -z "${!name-}" ] || how+="$name=${!name} "; done
  how+="go ${module:+-C $module }test"
  for flag in -race -short; do case " $* " in *" $flag "*) how+=" $flag" ;; esac; done
  echo "= $how" >>"$log"
  go ${module:+-C "$module"} test -timeout 60m $count "$@" 2>&1 | tee -a "$log" | shown
}
shown() { cat; }

# commands prints, for each package that failed, the command that runs its failed tests and specs alone.
commands() {
  sed -E 's/\x1b\[[0-9;]*m//g' "$log" | awk '
    /^= / { how = substr($0, 3) }
    /^--- FAIL: / { tests = tests (tests ? "|" : "") $3 }
    /^ *\[FAIL\] / {
      sub(/^ *\[FAIL\] /, ""); sub(/ \[[^]]*\]$/, ""); gsub(/\[[A-Za-z]+\] /, "")
      gsub(/[][\\.*+?(){}|^$\047]/, ".")
      if (index("|" specs "|", "|" $0 "|") == 0) specs = specs (specs ? "|" : "") $0
    }
    /^FAIL\t/ {
      name = $2
      if (how !~ / -C /) sub("^github.com/outbox-operator/outbox-operator", ".", name)
      print "    " how " " name (tests ? " -run \047^(" tests ")$\047" : "") (specs ? " -ginkgo.focus=\047" specs "\047" : "")
      tests = specs = ""
    }'
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
in_module() { module=$1 tests ./...; }

# base is the commit to compare with: main, or on main the commit before. It is empty where there is none.
base() {
  local base
  base=$(git merge-base HEAD "${BASE:-origin/main}" 2>/dev/null || git rev-parse HEAD 2>/dev/null) || return 0
  [ "$base" != "$(git rev-parse HEAD)" ] || base=HEAD^
  git rev-parse --quiet --verify "$base" || true
}

# changed PATH...: whether one of them differs from main. Without a commit to compare with, none does.
changed() {
  local base
  base=$(base)
  [ -n "$base" ] && { ! git diff --quiet "$base" -- "$@" || [ -n "$(git ls-files --others --exclude-standard "$@")" ]; }
}

# data_plane runs the data plane without the race detector, but for what has it.
data_plane() {
  local all skip=''
  all=$(go list ./dispatcher/... ./migrations/... | grep -vxFf <(go list "${racing[@]}")) || return
  if ! changed migrations; then
    all=$(grep -v /migrations/adopt <<<"$all")
    skip='Adopt|M10'
  fi
  tests $parallel -short ${skip:+-skip "$skip"} $all
}

# races runs the packages that have most goroutines.
races() {
  changed migrations dispatcher/pgstore || set -- -skip 'M10|^TestKeysUnderFireKeepTheirOrder|^TestLeasesRiseAfter|^TestMoveByLogicalReplicationKeepsOrderAndTokens'
  race tests $parallel -short "$@" "${racing[@]}"
}

# changed_tools runs the tests of what only developers run, where a folder differs.
changed_tools() {
  local tool code=0 packages=()
  for tool in hack/{chaos,scale,readers,release} hack/servers/*/; do
    ! changed "$tool" || packages+=("./$tool")
  done
  echo "They differ from main: ${packages[*]:-none}"
  [ ${#packages[@]} = 0 ] || on_api_server "${packages[@]}" || code=$?
  ! changed hack/bench || in_module hack/bench || code=$?
  return $code
}

# cluster LABELS: specs on a real cluster.
cluster() { OUTBOX_E2E=1 tests -count=1 -v ./hack/e2e -ginkgo.v -ginkgo.no-color ${1:+-ginkgo.label-filter="$1"}; }

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
  step "The data plane with the race detector, on PostgreSQL ${majors[0]}" on "${majors[0]}" races
  step "The client's module" in_module dispatcher/client
  step "The rest of the data plane, on PostgreSQL ${majors[0]}" on "${majors[0]}" data_plane
  simulations
}

simulations() {
  step "Long simulations of the engine" tests -run TestLong ./dispatcher/engine ./dispatcher/internal/pacer
  step "Budgets of plans and WAL, on PostgreSQL ${majors[-1]}" on "${majors[-1]}" budgets
}

control() {
  step "The control plane, on a real kube-apiserver" on_api_server -short ./api/... ./config/... ./controllers/... "${watching[@]}"
  step "Argo CD's health check" in_module hack/gitops
}

tools() { step "Tools that changed" changed_tools; }

# everything runs two groups side by side, since each waits half of its time: the specs and the modules, whose output comes
# at their end, next to all else.
everything() {
  local others=$log.others group
  LABELS='' hack/test.sh e2e modules >"$others" 2>&1 &
  group=$!
  count=-count=1
  step "The data plane with the race detector, on PostgreSQL ${majors[0]}" race on "${majors[0]}" tests $parallel -short ./dispatcher/... ./migrations/...
  simulations
  step "All packages, on PostgreSQL ${majors[-1]}" on "${majors[-1]}" on_api_server ./...
  for major in "${majors[@]:1:${#majors[@]}-2}"; do
    step "PostgreSQL $major: tables, statements and order per key" on "$major" tests $parallel -short "${database[@]}"
    step "Budgets of plans and WAL, on PostgreSQL $major" on "$major" budgets
  done
  step "All specs on a real cluster, and the modules, which ran next to it" ended $group "$others"
}

# ended PID FILE: waits for the group, and shows what it printed.
ended() {
  local code=0
  wait "$1" || code=$?
  cat "$2"
  return $code
}

modules() {
  local dir
  count=-count=1
  for dir in hack/{gitops,bench} dispatcher/client; do step "$dir" in_module $dir; done
}

steady_times
[ $# -gt 0 ] || set -- data control tools cluster
for part in "$@"; do
  case $part in
    data | control | tools | modules) $part ;;
    cluster) UPGRADE_DISPATCHERS=${UPGRADE_DISPATCHERS:-6} step "The main job, a stop and an upgrade on a real cluster" cluster gate ;;
    e2e) step "Specs on a real cluster" cluster "${LABELS-}" ;;
    all) everything ;;
    *) echo "usage: $0 [data|control|tools|cluster|e2e|modules|all]..." >&2; exit 2 ;;
  esac
done
say "What took how long:"$'\n'"$times"
if [ -n "$failed" ]; then
  say "Failed, each with what runs it alone:"$'\n'"$failed"
  exit 1
fi
say "Done. Everything that the tests started is gone."
