#!/usr/bin/env bash
# test.sh: tries a cluster of its own end to end, as root on Linux: workloads, networks, names,
# admission, a node that is killed, and that nothing is left. Takes half a minute when built.
export OUTBOX_CLUSTER=${OUTBOX_CLUSTER:-selftest}
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
! uses_kind || { say "nothing to test: kind is used here"; exit 3; }

work=$(mktemp -d)
finish() {
  local code=$?
  [ $code = 0 ] || { say "FAILED; the last lines of the node's logs:"; tail -n 3 "$STATE"/log/*.log >&2 || true; }
  jobs -p | xargs -r kill 2>/dev/null || true
  "$HERE/down.sh" --purge
  rm -rf "$work"
}
trap finish EXIT
step() { echo "--- ${SECONDS}s $*"; }
# eventually CMD...: succeeds when CMD does within 20 seconds.
eventually() {
  local end=$((SECONDS + 20))
  until "$@" 2>"$work/eventually"; do
    [ $SECONDS -lt $end ] || fail "not in time: $*: $(tail -n 1 "$work/eventually")"
    sleep 0.2
  done
}
refused() { ! "$@" >"$work/output" 2>&1 || fail "succeeded, and should not have: $*"; }
same() { [ "$1" = "$2" ] || fail "got '$1', want '$2'"; }

step "nothing of an earlier run is here"
"$HERE/down.sh" --purge
# traces prints what this machine shows of the cluster.
traces() {
  ip -o link | grep -o "$VETH" || true
  ip route show table all | grep -E "10\.(250|244|96)\.$net\." || true
  find /sys/fs/cgroup -name "$CGROUP"
  grep -l "$STATE" /proc/[0-9]*/mountinfo 2>/dev/null || true
  find /proc/[0-9]*/ns -lname "${1:-none}" 2>/dev/null || true
}
same "$(traces)" ""

step "up"
"$HERE/up.sh" --env >"$work/env"
while read -r line; do export "${line?}"; done <"$work/env"
k() { "$KUBECTL" "$@"; }
namespaces=$(readlink "/proc/$(node_pid)/ns/pid")

step "up again finds it running"
pid=$(node_pid)
same "$("$HERE/up.sh" 2>"$work/stderr")" "$KUBECONFIG"
same "$(node_pid)" "$pid"

step "an image is made and loaded"
mkdir "$work/root"
(cd "$HERE" && CGO_ENABLED=0 go build -trimpath -o "$work/root/probe" ./probe)
probe=$work/root/probe
(cd "$HERE/../image" && go run . probe:test "$work/probe.tar" "$work/root" /probe)
"$HERE/load.sh" "$work/probe.tar"

step "restricted Pod Security admits the workload and refuses a privileged pod"
k create namespace test >/dev/null
k label namespace test pod-security.kubernetes.io/enforce=restricted >/dev/null
refused k -n test run bad --image=probe:test --privileged
grep -q 'violates PodSecurity "restricted' "$work/output"
cat >"$work/workload.yaml" <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: web
          image: probe:test
          args: [serve, ":8080"]
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
          resources: {limits: {memory: 64Mi}}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
END
k -n test apply --server-side -f "$work/workload.yaml" >/dev/null
k -n test rollout status deployment/web --timeout=60s >/dev/null

pods() { k -n test get pods -l app=web -o 'jsonpath={.items[*].metadata.name}'; }
in_pod() { k -n test exec deployment/web -- /probe "$@"; }
# both_respond PROBE...: succeeds when both pods respond.
both_respond() {
  for _ in {1..20}; do "$@" || return; done | sort -u >"$work/hosts"
  [ "$(wc -l <"$work/hosts")" = 2 ]
}
step "this machine reaches the pods by their addresses, and the Service by its own"
for pod in $(pods); do
  same "$("$probe" get "http://$(k -n test get pod "$pod" -o 'jsonpath={.status.podIP}'):8080")" "$pod"
done
service=http://$(k -n test get service web -o 'jsonpath={.spec.clusterIP}')
eventually both_respond "$probe" get "$service"

step "a pod reaches the Service, names, and this machine; nothing beyond"
eventually both_respond in_pod get http://web
same "$(in_pod lookup web.test.svc.cluster.local)" "${service#http://}"
same "$(in_pod lookup host.internal)" "$HOST_IP"
refused in_pod lookup nowhere.example
grep -q "no such host" "$work/output"
"$probe" serve "$HOST_LISTEN:18080" >/dev/null &
eventually "$probe" get "http://$HOST_LISTEN:18080" >/dev/null
same "$(in_pod get http://host.internal:18080)" "$(hostname)"
refused in_pod get http://203.0.113.1 # an address of no host

step "logs, events, port-forward, pod proxy, a wrong image"
pod=$(pods | cut -d' ' -f1)
same "$(k -n test logs "$pod")" "serving as $pod"
k -n test get events -o 'jsonpath={.items[*].reason}' | grep -qw Started
k -n test port-forward "pod/$pod" 18081:8080 >/dev/null &
eventually "$probe" get http://127.0.0.1:18081 >/dev/null
same "$("$probe" get http://127.0.0.1:18081)" "$pod"
same "$(k get --raw "/api/v1/namespaces/test/pods/$pod:8080/proxy/")" "$pod"
k -n default run wrong --image=nowhere.example/wrong:1 >/dev/null
k -n default wait pod/wrong --timeout=20s >/dev/null \
  --for='jsonpath={.status.containerStatuses[0].state.waiting.reason}'=ErrImagePull
k -n default delete pod wrong --now >/dev/null

step "the node is killed: it leaves the blackholes only; it starts again with its pods"
kill -KILL "$(node_pid)"
eventually test ! -e "$NODE_PID"
same "$(traces "$namespaces" | grep -v ^blackhole || true)" ""
"$HERE/up.sh" >/dev/null
eventually "$probe" get "$service" >/dev/null
k -n test rollout status deployment/web --timeout=60s >/dev/null
eventually both_respond "$probe" get "$service"

step "down keeps the state, and down --purge leaves nothing"
namespaces=$(readlink "/proc/$(node_pid)/ns/pid")
"$HERE/down.sh"
same "$(traces "$namespaces" | grep -v ^blackhole || true)" ""
[ -d "$STATE" ] || fail "the state is gone"
"$HERE/down.sh" --purge
same "$(traces "$namespaces")" ""
for dir in "$STATE" "$RUN"; do [ ! -e "$dir" ] || fail "$dir is left"; done
step "passed"
