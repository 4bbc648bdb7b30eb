#!/usr/bin/env bash
# up.sh [--env|--build]: has a one-node Kubernetes: starts it, or finds it running. With --build it builds what that takes, and
# starts nothing.
#
# The last line on standard output is the path of its kubeconfig. With --env, standard output is:
#   KUBECONFIG=...    the kubeconfig of an administrator
#   KUBECTL=...       a kubectl of a fitting version
#   HOST_IP=...       the address under which pods reach this machine
#   HOST_LISTEN=...   the address on which a server on this machine listens for them
#   KUBECACHEDIR=...  where kubectl may keep what it learns of the API
#   NODE_EXEC=...     with kind: what runs a command on the node, with commas for spaces, since `export $(up.sh --env)`
#                     takes one word for each
#
# OUTBOX_CLUSTER names the cluster (default outbox); OUTBOX_CACHE moves what is kept on disk
# (default ~/.cache/outbox-operator). Exit code 3: this machine can have no cluster.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
case ${1-} in
  '') print_env() { sed -n s/^KUBECONFIG=//p "$1"; } ;;
  --env) print_env() { cat "$1"; } ;;
  --build) ;;
  *) echo "usage: $0 [--env|--build]" >&2; exit 2 ;;
esac

if uses_kind; then
  [ "${1-}" != --build ] || exit 0
  . "$HERE/kind.sh"
  kind_up
  print_env "$STATE/env"
  exit
fi

[ "$(uname -s)" = Linux ] || cannot "A cluster needs kind, with Docker or Podman, on this system."
[ "$(id -u)" = 0 ] || cannot "A cluster needs root; or kind, with a Docker or Podman that runs."
unshare --mount --net --uts --pid --fork true 2>/dev/null ||
  cannot "A cluster needs a root that may make namespaces, and this one may not (a container without --privileged?); or kind, with a Docker or Podman that runs."
NODE_BIN=$("$HERE/build.sh")
KUBE_BIN=$("$HERE/../pins/kube/build.sh" node)
[ "${1-}" != --build ] || exit 0
export NODE_BIN KUBE_BIN
# The rest is on this machine, and a proxy does not lead to it: not for kubectl, and not for the node's programs.
unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy

# claim_networks checks that they are unused, and keeps their addresses from leaving this
# machine while the node is down: a client that outlives it must reach nothing.
claim_networks() {
  local net
  for net in "$HOST_NET" "$POD_NET" "$SERVICE_NET"; do
    [ -z "$(ip -4 route show root "$net" type unicast)" ] ||
      fail "this machine uses the network $net already; choose another name in OUTBOX_CLUSTER, and so other networks"
    ip route replace blackhole "$net" metric 4096
  done
}

# make_cgroup makes the one under which the kubelet keeps its pods.
make_cgroup() {
  local dir file controller
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then # version 2
    mkdir -p "/sys/fs/cgroup/$CGROUP"
    for dir in /sys/fs/cgroup "/sys/fs/cgroup/$CGROUP"; do
      for controller in $(cat "$dir/cgroup.controllers"); do
        echo "+$controller" 2>/dev/null >"$dir/cgroup.subtree_control" ||
          say "the cgroup controller $controller cannot be given to cgroups under $dir"
      done
    done
    return
  fi
  for dir in /sys/fs/cgroup/*/; do # version 1: a tree for each controller
    [ -e "$dir/cgroup.procs" ] || continue
    mkdir -p "$dir/$CGROUP"
    for file in cpuset.cpus cpuset.mems; do # empty in a new cpuset, which then admits no process
      [ ! -e "$dir/$file" ] || cat "$dir/$file" >"$dir/$CGROUP/$file"
    done
  done
}

# start_node starts node.sh as the first process of new namespaces, and a process that
# waits for its end and removes it.
start_node() {
  local end=$((SECONDS + 30))
  setsid bash -c '
    . "$0/lib.sh"
    setpriv --pdeathsig KILL unshare --mount --net --uts --pid --fork --kill-child -- "$0/node.sh" "$CLUSTER" 9>&- || true
    remove_node
  ' "$HERE" </dev/null >"$STATE/log/node.log" 2>&1 8>&- &
  until node_pid >/dev/null; do
    [ $SECONDS -lt $end ] || fail "the node did not start; see $STATE/log/node.log"
    sleep 0.05
  done
}

# join_networks connects the node's network with this machine's, as far as it is not yet.
join_networks() {
  ip link show "$VETH" >/dev/null 2>&1 || ip link add "$VETH" type veth peer name eth0 netns "$(node_pid)"
  ip address replace "$HOST_IP/24" dev "$VETH"
  ip link set "$VETH" up
  ip route replace "$POD_NET" via "$NODE_IP"     # this machine reaches pods and Services
  ip route replace "$SERVICE_NET" via "$NODE_IP" # by their own addresses
}

# wait_for WHAT CMD...: waits until CMD succeeds.
wait_for() {
  local what=$1 end=$((SECONDS + 300))
  shift
  until "$@" >/dev/null 2>&1; do
    node_pid >/dev/null || fail "the node ended; see $STATE/log/node.log"
    [ $SECONDS -lt $end ] || fail "$what is not there after 5 minutes; see $STATE/log, or start afresh: $HERE/down.sh --purge"
    sleep 0.1
  done
}

lock
mkdir -p "$RUN" "$STATE/log"
exec 9>"$NODE_LOCK"
if flock -n 9 || ! node_pid >/dev/null; then
  lock_node
  say "starting the cluster $CLUSTER"
  kill_node # what a crash may have left
  remove_node
  "$HERE/pki.sh" "$STATE/pki"
  printf '%s\n' "KUBECONFIG=$STATE/pki/admin.kubeconfig" "KUBECTL=$KUBE_BIN/kubectl" \
    "HOST_IP=$HOST_IP" "HOST_LISTEN=$HOST_IP" "KUBECACHEDIR=$STATE/kubectl" >"$RUN/env"
  claim_networks
  make_cgroup
  start_node
fi
join_networks # also of a node whose up.sh was interrupted
exec 9>&- # the process that removes the node still holds it

while read -r line; do export "${line?}"; done <"$RUN/env"
k() { "$KUBECTL" "$@"; }
wait_for "the API server" k get --raw /readyz
wait_for "the kubelet" k get --raw "/api/v1/nodes/$NODE/proxy/healthz"
wait_for "the node" k wait --for=condition=Ready "node/$NODE" --timeout=1s
wait_for "the service account of namespace default" k get serviceaccount default
wait_for "the network of Services" timeout 1 bash -c ": </dev/tcp/$SERVICE_IP/443"
wait_for "DNS" timeout 1 bash -c ": </dev/tcp/$NODE_IP/53"
print_env "$RUN/env"
