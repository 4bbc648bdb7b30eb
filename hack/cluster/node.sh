#!/usr/bin/env bash
# node.sh NAME: the first process of the node of the cluster NAME. up.sh starts it in new mount,
# network, uts and pid namespaces. It makes this machine's file system look like a node's, and
# keeps a node's programs running.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
ETC=/run/etc # configuration, written at each start
PKI=/run/pki
VOLUME_PLUGINS=/var/lib/kubelet/volume-plugins # else their directory is made in this machine's /usr

# set_up_files shows the node's state where programs look for it by default, and hides this
# machine's. The mounts end with the node.
set_up_files() {
  local pid setting file
  read -r pid _ </proc/self/stat # this machine's /proc still: the pid as this machine counts
  echo "$pid" >"$NODE_PID"
  mount -t proc proc /proc
  echo "$NODE" >/proc/sys/kernel/hostname
  mkdir -p "$STATE/lib"
  mount --bind "$STATE/log" /var/log
  mount -t tmpfs -o mode=755 tmpfs /run # no stale sockets, as after a boot
  mkdir -p "$ETC" "$PKI" /run/kube /run/node
  mount --bind "$KUBE_BIN" /run/kube
  mount --bind "$NODE_BIN" /run/node
  mount --bind "$STATE/pki" "$PKI"
  mount --bind "$STATE/lib" /var/lib # last, since it may hide where the others come from
  PATH=/run/kube:/run/node:$PATH
  # The kubelet would set these for the whole machine; here it finds them set.
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    [ -e "/proc/sys/${setting%=*}" ] || continue # not in this kernel
    file=$ETC/${setting%=*}
    mkdir -p "${file%/*}"
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${setting%=*}"
  done
}

# set_up_network waits for the cable. There is no default route: nothing in the cluster reaches
# beyond this machine.
set_up_network() {
  local end=$((SECONDS + 60))
  until ip link set eth0 up 2>/dev/null; do
    [ $SECONDS -lt $end ] || fail "the node's network was not connected"
    sleep 0.02
  done
  ip link set lo up
  ip address add "$NODE_IP/24" dev eth0
  echo 1 >/proc/sys/net/ipv4/ip_forward # of this network namespace only
}

configure() {
  local cni=/usr/lib/cni snapshotter=overlayfs
  [ -x $cni/ptp ] || cni=/opt/cni/bin
  [ "$(stat -f -c %T /var/lib)" != overlayfs ] || snapshotter=native # no overlay on top of an overlay
  # Pulls go to an address that refuses: a wrong image name fails at once.
  mkdir -p "$ETC/registries/_default" "$ETC/cni"
  cat >"$ETC/registries/_default/hosts.toml" <<END
server = "http://127.0.0.1:1"
[host."http://127.0.0.1:1"]
  capabilities = ["pull", "resolve"]
END
  cat >"$ETC/containerd.toml" <<END
version = 2 # containerd 1.6 to 2 read it
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE_IMAGE"
  disable_apparmor = true       # it would load a profile into this machine's kernel
  restrict_oom_score_adj = true # this root may lack the right to lower scores
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "$ETC/registries"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$cni"
  conf_dir = "$ETC/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$snapshotter"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
END
  export CONTAINERD_SNAPSHOTTER=$snapshotter # for ctr
  cat >"$ETC/cni/pods.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": "$POD_NET"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
END
  echo "nameserver $NODE_IP" >"$ETC/resolv.conf"
  cat >"$ETC/Corefile" <<END
. {
  bind $NODE_IP
  errors
  hosts /dev/null host.internal {
    $HOST_IP host.internal
  }
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $PKI/admin.kubeconfig
  }
  template ANY ANY {
    rcode NXDOMAIN
  }
}
END
  cat >"$ETC/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $PKI/ca.crt}}
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
clusterDNS: [$NODE_IP]
clusterDomain: cluster.local
resolvConf: $ETC/resolv.conf
volumePluginDir: $VOLUME_PLUGINS
oomScoreAdj: 0
maxOpenFiles: $(ulimit -Hn)
imageGCHighThresholdPercent: 100 # an image that is removed cannot be pulled again
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%, imagefs.inodesFree: 1%}
END
  cat >"$ETC/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $PKI/kube-proxy.kubeconfig}
clusterCIDR: $POD_NET
hostnameOverride: $NODE
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s} # this machine's stay
END
}

# keep PROGRAM ARG...: runs a program in the background, logged, and again whenever it ends.
keep() {
  while :; do
    "$@" || true
    echo "--- ended, again in a second"
    sleep 1
  done >"/var/log/$1.log" 2>&1 &
}

run() {
  keep containerd --config "$ETC/containerd.toml"
  # Development only: a crash of the machine, other than of the node, may lose what etcd holds.
  keep etcd --name "$NODE" --data-dir /var/lib/etcd --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380
  keep kube-apiserver --etcd-servers http://127.0.0.1:2379 --cert-dir /run/kube-apiserver \
    --advertise-address "$NODE_IP" --service-cluster-ip-range "$SERVICE_NET" \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --client-ca-file $PKI/ca.crt --tls-cert-file $PKI/apiserver.crt --tls-private-key-file $PKI/apiserver.key \
    --kubelet-client-certificate $PKI/admin.crt --kubelet-client-key $PKI/admin.key \
    --kubelet-preferred-address-types InternalIP \
    --service-account-issuer https://kubernetes.default.svc.cluster.local \
    --service-account-key-file $PKI/service-account.key --service-account-signing-key-file $PKI/service-account.key
  until ctr version; do sleep 0.1; done >/dev/null 2>&1
  ctr --namespace k8s.io images import /run/node/pause.tar
  # The others wait longer after each failure, so they start when the API server is ready.
  until kubectl --kubeconfig $PKI/admin.kubeconfig get --raw /readyz; do sleep 0.1; done >/dev/null 2>&1
  keep kube-controller-manager --kubeconfig $PKI/kube-controller-manager.kubeconfig --leader-elect=false \
    --use-service-account-credentials --kube-api-qps 500 --kube-api-burst 500 \
    --service-account-private-key-file $PKI/service-account.key --root-ca-file $PKI/ca.crt \
    --cluster-signing-cert-file $PKI/ca.crt --cluster-signing-key-file $PKI/ca.key \
    --flex-volume-plugin-dir $VOLUME_PLUGINS
  keep kube-scheduler --kubeconfig $PKI/kube-scheduler.kubeconfig --leader-elect=false
  keep kubelet --kubeconfig $PKI/kubelet.kubeconfig --config "$ETC/kubelet.yaml" \
    --hostname-override "$NODE" --node-ip "$NODE_IP"
  keep kube-proxy --config "$ETC/kube-proxy.yaml"
  keep coredns -conf "$ETC/Corefile"
}

set_up_files
set_up_network
configure
run
wait
