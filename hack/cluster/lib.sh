# shellcheck shell=bash disable=SC2034 # the scripts that source this use them
# What the scripts of this directory share; sourced, never run.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin # where a node's programs are, and not every root looks
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

CLUSTER=${OUTBOX_CLUSTER:-outbox} # the name; clusters of different names live side by side
[[ $CLUSTER =~ ^[a-z][a-z0-9-]{0,10}$ ]] || { # with its prefix it names a network device: 15 characters
  echo "OUTBOX_CLUSTER is '$CLUSTER'; give a name of 1 to 11 characters of a-z, 0-9 and -" >&2
  exit 2
}
CACHE=${OUTBOX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outbox-operator}
STATE=$CACHE/cluster-$CLUSTER # certificates, etcd's data, images, logs

# What is machine-wide lies under /run, so that two checkouts and two users see the same cluster.
LOCK=/run/outbox-cluster.lock # held while a cluster is started or stopped
RUN=/run/outbox-cluster-$CLUSTER
NODE_LOCK=$RUN/lock # held until the node has ended and is removed
NODE_PID=$RUN/pid   # of the node's first process, as this machine counts
HELD=$RUN.held      # locked by a run of the demo or the tests: hack/e2e/scenario/hold.go
[ "$(id -u)" = 0 ] && [ -d /run ] || HELD=${TMPDIR:-/tmp}/outbox-cluster-$CLUSTER-$(id -u).held
VETH=obx-$CLUSTER   # this machine's end of the cable to the node
CGROUP=outbox-cluster-$CLUSTER

# Each name has networks of its own.
[ "$CLUSTER" = outbox ] && net=0 || net=$((1 + $(printf %s "$CLUSTER" | cksum | cut -d' ' -f1) % 250))
HOST_IP=10.250.$net.1 # this machine, as the node and the pods reach it
NODE_IP=10.250.$net.2 # the node, as this machine reaches it
HOST_NET=10.250.$net.0/24
POD_NET=10.244.$net.0/24
SERVICE_NET=10.96.$net.0/24
SERVICE_IP=10.96.$net.1 # of the Service "kubernetes"
NODE=node1
PAUSE_IMAGE=docker.io/outbox-operator/pause:1

say() { echo "cluster: $*" >&2; }
fail() { say "$@"; exit 1; }
# cannot WHY: this machine can have no cluster, which exit code 3 says.
cannot() { say "$* Without Kubernetes: make demo-local."; exit 3; }

# uses_kind succeeds when the cluster is kind's: where kind and a container engine work.
uses_kind() {
  ! node_pid && command -v kind && { docker info || { podman info && export KIND_EXPERIMENTAL_PROVIDER=podman; }; }
} >/dev/null 2>&1

# holder prints the process that holds the name, if one does. Without flock, such as on macOS, it is the last one that did,
# if a process has its pid.
holder() {
  local pid rest
  read -r pid rest 2>/dev/null <"$HELD" && kill -0 "$pid" 2>/dev/null || return
  ! command -v flock >/dev/null || ! flock -n "$HELD" true || return
  echo "$pid $rest"
}

# lock makes this process the only one that starts or stops clusters on this machine.
lock() {
  exec 8>"$LOCK"
  flock -n 8 || { say "waiting for another start or stop to end"; flock 8; }
}

# lock_node waits until there is no node, and no process that removes one.
lock_node() { flock -w 60 9 || fail "a node that was ended is still there after a minute; see $STATE/log/node.log"; }

# node_pid prints the pid of the node's first process, if that lives.
node_pid() {
  local pid
  read -r pid 2>/dev/null <"$NODE_PID" || return
  [[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") == *"/node.sh $CLUSTER " ]] && echo "$pid"
}

# in_node CMD...: runs CMD where the node's processes run.
in_node() { nsenter --target "$(node_pid)" --mount --net --uts --pid -- "$@"; }

# kill_node ends the node: with its first process the kernel ends every other one, and with them
# go its mounts, its network and this machine's end of the cable.
kill_node() {
  local pid
  pid=$(node_pid) || return 0
  kill -KILL "$pid"
  while [ -d "/proc/$pid" ]; do sleep 0.05; done
}

# remove_node removes what no kernel removes by itself after the node ended.
remove_node() {
  local dir
  rm -f "$NODE_PID"
  ip link delete "$VETH" 2>/dev/null || true # still there for a moment, as are its routes
  for dir in /sys/fs/cgroup/"$CGROUP" /sys/fs/cgroup/*/"$CGROUP"; do
    [ ! -d "$dir" ] || find "$dir" -depth -type d -exec rmdir {} +
  done
}
