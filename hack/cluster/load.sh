#!/usr/bin/env bash
# load.sh IMAGE.tar...: puts image archives (of docker or OCI) into the running cluster.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# != 0 ] || { echo "usage: $0 IMAGE.tar..." >&2; exit 2; }

if uses_kind; then
  . "$HERE/kind.sh"
  kind_load "$@"
  exit
fi
node_pid >/dev/null || fail "the cluster $CLUSTER is not running; start it with $HERE/up.sh"
for image in "$@"; do
  in_node ctr --namespace k8s.io images import - <"$image" >/dev/null
done
