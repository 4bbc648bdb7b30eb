# shellcheck shell=bash
# The same cluster by kind, for the scripts of this folder; sourced when uses_kind succeeds.
ENGINE=${KIND_EXPERIMENTAL_PROVIDER:-docker}
KIND_NAME=outbox-operator-$CLUSTER # kind has one list for all: another "demo" may be there
[ "$(id -u)" = 0 ] || KIND_NAME+=-$(id -u) # two users of one engine
KIND_NODE=$KIND_NAME-control-plane

kind_exists() { kind get clusters 2>/dev/null | grep -x "$KIND_NAME" >/dev/null; } # to the end: kind fails when it cannot write

kind_up() {
  local kubectl host
  kubectl=$(command -v kubectl) || kubectl=$("$HERE/../pins/kube/build.sh" test)/kubectl
  mkdir -p "$STATE"
  if kind_exists; then
    "$ENGINE" start "$KIND_NODE" >/dev/null # the engine may have been restarted
    kind export kubeconfig --name "$KIND_NAME" --kubeconfig "$STATE/kubeconfig" >&2
    "$kubectl" --kubeconfig "$STATE/kubeconfig" wait --for=condition=Ready nodes --all --timeout=3m >&2
  else
    say "starting the cluster $KIND_NAME with kind and $ENGINE"
    kind create cluster --name "$KIND_NAME" --kubeconfig "$STATE/kubeconfig" --wait 3m >&2
  fi
  host=$(kind_host)
  printf '%s\n' "KUBECONFIG=$STATE/kubeconfig" "KUBECTL=$kubectl" \
    "HOST_IP=$host" "HOST_LISTEN=$(kind_listen "$host")" "KUBECACHEDIR=$STATE/kubectl" \
    "NODE_EXEC=$ENGINE,exec,$KIND_NODE" >"$STATE/env"
}

# kind_host prints this machine's address as the node sees it: the one that a desktop's engine
# names, or the gateway of the node's network.
kind_host() {
  "$ENGINE" exec "$KIND_NODE" sh -c '
    getent ahostsv4 host.docker.internal || getent ahostsv4 host.containers.internal || ip -4 route show default | cut -d" " -f3
  ' | awk 'NR == 1 { print $1 }'
}

# kind_listen ADDRESS prints where to listen so that ADDRESS leads here: itself, if this machine
# has it; else a desktop's engine forwards it to 127.0.0.1.
kind_listen() {
  if ip -4 address show to "$1" 2>/dev/null | grep -q .; then echo "$1"; else echo 127.0.0.1; fi
}

kind_down() {
  ! kind_exists || kind delete cluster --name "$KIND_NAME" --kubeconfig "$STATE/kubeconfig" >&2
  rm -rf "$STATE"
}

kind_load() {
  local image name
  for image in "$@"; do
    name=$(image_name "$image")
    case $name in
      '' | docker.io/*) kind load image-archive "$image" --name "$KIND_NAME" >&2 ;;
      *) "$ENGINE" exec -i "$KIND_NODE" ctr --namespace k8s.io images import --digests --base-name "$name" - <"$image" >&2 ;;
    esac
  done
}
