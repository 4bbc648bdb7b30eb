#!/usr/bin/env bash
# load.sh IMAGE.tar...: puts image archives (of docker or OCI) into the running cluster. One with a registry in its name, such as
# a release's, is known by its digest too.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ $# != 0 ] || { echo "usage: $0 IMAGE.tar..." >&2; exit 2; }

# image_name prints the name of an archive's image, without the tag, where it has a registry.
image_name() { { tar -xOf "$1" index.json 2>/dev/null || true; } | sed -n 's/.*"io.containerd.image.name": *"\(.*\):[^:]*".*/\1/p'; }

if uses_kind; then
  . "$HERE/kind.sh"
  kind_load "$@"
  exit
fi
node_pid >/dev/null || fail "the cluster $CLUSTER is not running; start it with $HERE/up.sh"
for image in "$@"; do
  name=$(image_name "$image")
  in_node ctr --namespace k8s.io images import ${name:+--digests --base-name "$name"} - <"$image" >/dev/null
done
