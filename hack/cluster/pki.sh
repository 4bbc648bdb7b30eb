#!/usr/bin/env bash
# pki.sh DIR: makes the certificates of a cluster and the kubeconfigs that hold them, once.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ ! -d "$1" ] || exit 0
umask 077
new=$1.new
rm -rf "$new"
mkdir -p "$new"
cd "$new"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }
# cert NAME SUBJECT [SUBJECT-ALT-NAMES]
cert() {
  key "$1"
  openssl req -new -key "$1.key" -subj "$2" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt" -extfile <(
      echo "extendedKeyUsage=clientAuth,serverAuth"
      [ -z "${3-}" ] || echo "subjectAltName=$3"
    ) 2>/dev/null
}
# user NAME SUBJECT: a client certificate, and the kubeconfig that holds it.
user() {
  cert "$1" "$2"
  cat >"$1.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: $CLUSTER
contexts: [{name: $CLUSTER, context: {cluster: $CLUSTER, user: $1}}]
clusters: [{name: $CLUSTER, cluster: {server: "https://$NODE_IP:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
END
}

key ca
openssl req -x509 -new -key ca.key -subj "/CN=$CLUSTER" -days 3650 -out ca.crt
key service-account
names=IP:$NODE_IP,IP:$SERVICE_IP,IP:127.0.0.1,DNS:localhost
for suffix in '' .default .default.svc .default.svc.cluster.local; do names+=,DNS:kubernetes$suffix; done
cert apiserver /CN=kube-apiserver "$names"
user admin /O=system:masters/CN=admin
user kubelet "/O=system:nodes/CN=system:node:$NODE"
for name in kube-controller-manager kube-scheduler kube-proxy; do user $name /CN=system:$name; done
cd ..
mv "$new" "$1" # whole or not at all
