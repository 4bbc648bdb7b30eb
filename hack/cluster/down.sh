#!/usr/bin/env bash
# down.sh [--purge|--clean]: stops the cluster. Its objects and images are kept for the next up.sh, unless
# --purge is given: then nothing of it is left. --clean is --purge, but for a cluster that a demo or tests
# use: that is left as it is. Does nothing when there is no cluster.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case ${1-} in
  '' | --purge) ;;
  --clean) ! user=$(holder) || { say "process $user uses the cluster $CLUSTER: it is left as it is"; exit; } ;;
  *) echo "usage: $0 [--purge|--clean]" >&2; exit 2 ;;
esac

if uses_kind; then
  . "$HERE/kind.sh"
  kind_down
  exit
fi
[ "$(uname -s)$(id -u)" = Linux0 ] || exit 0 # there can be none

lock
kill_node
if [ -d "$RUN" ]; then
  exec 9>"$NODE_LOCK"
  lock_node
fi
remove_node
if [ -n "${1-}" ]; then
  for net in "$HOST_NET" "$POD_NET" "$SERVICE_NET"; do
    ip route delete blackhole "$net" metric 4096 2>/dev/null || true
  done
  rm -rf "$RUN" "$STATE"
fi
