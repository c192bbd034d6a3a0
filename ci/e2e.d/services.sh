# shellcheck shell=bash
# kube-proxy and CoreDNS, as clusters have them: the driver's parts reach the API server by kube-proxy's rules alone, and buckets are made
# and mounted by the name of a Service. A pod that reads and writes notices nothing while CoreDNS is replaced.
# A cluster of its own: here the kubelet tells pods of a name server.
# needs: no driver
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2034,SC2016 # given by ci/e2e, and read by its functions; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/faults.bash

cluster() { "$top/ci/cluster" --state "$scratch/cluster" "$@"; }
finish_here() {
    local status=$?
    trap - EXIT
    [ $status -eq 0 ] || cluster logs "$logs/$name/node" || true
    cluster down || status=1
    exit $status
}
trap finish_here EXIT
with_driver=1
# The lab's own rule for the API server goes; kube-proxy is to make another.
without_rule() {
    local chain
    for chain in OUTPUT PREROUTING; do
        cluster run iptables -t nat -D $chain -d 10.96.0.1 -p tcp --dport 443 -j DNAT --to 10.60.0.1:6443
    done
}
start_proxy() {
    local proxy
    proxy=$(. ci/kubernetes/parts.bash && locked need_proxy >&2 && say "$program")
    cluster run sh -c 'cat >/usr/local/bin/kube-proxy && chmod 755 /usr/local/bin/kube-proxy' <"$proxy"
    cluster run tee /etc/kubernetes/kube-proxy.yaml <<'EOT'
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: node
clientConnection: { kubeconfig: /etc/kubernetes/kube-proxy.conf }
# Answers between pods of one bridge would not pass the rules otherwise: the machine's kernel may lack br_netfilter.
iptables: { masqueradeAll: true }
conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s }
EOT
    # An account with the role that Kubernetes has for it.
    cluster kubectl create clusterrolebinding kube-proxy --clusterrole=system:node-proxier --serviceaccount=kube-system:kube-proxy
    cluster kubectl -n kube-system create serviceaccount kube-proxy
    cluster run sed "s/token: .*/token: \"$(cluster kubectl -n kube-system create token kube-proxy)\"}}]/" /etc/kubernetes/kubelet.conf |
        cluster run sh -c 'umask 077; cat >/etc/kubernetes/kube-proxy.conf'
    cluster run systemd-run --quiet --unit=kube-proxy /usr/local/bin/kube-proxy --config=/etc/kubernetes/kube-proxy.yaml
}

cluster up
printf 'clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n' | cluster run sh -c 'cat >>/etc/kubernetes/kubelet.yaml'
stop_part kubelet
start_kubelet
without_rule
start_proxy
load_images
cluster load "$(ci/images dns)"
answers() { cluster net curl --silent --max-time 5 --insecure --output "$scratch/answer" "https://10.96.0.1/version"; }
until_ok "the API server by its Service" answers
cluster kubectl apply -f ci/kubernetes/dns.yaml
cluster kubectl -n kube-system rollout status deployment/coredns --timeout="${wait_s}s"
start_stores
read_keys
cluster kubectl -n stores create service clusterip s3 --tcp=80:9000
cluster kubectl -n stores set selector service/s3 store=s3server
cluster kubectl create namespace "$namespace"
s3_bucket "$bucket"
install_driver
release_driver --set s3.endpointUrl=http://s3.stores.svc.cluster.local
head -c 4194304 /dev/urandom >"$scratch/random"
s3_put random "$scratch/random"

volume data
busy_workload busy data
wait_pod busy
noticed_nothing busy
serves=$(mountpoint_pods data)
told() { cluster run sh -c 'for it in $(pgrep -f ^/mountpoint-s3/bin/mount-s3); do tr "\0" "\n" <"/proc/$it/cmdline"; tr "\0" "\n" <"/proc/$it/environ"; done'; }
holds "what the engine was told" //s3.stores.svc.cluster.local "$(told)"
kube apply -f - <<EOT
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: { name: $namespace }
provisioner: s3.csi.scality.com
mountOptions: [allow-delete]
parameters: { onDelete: purge }
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: made, namespace: $namespace }
spec: { storageClassName: $namespace, accessModes: [ReadWriteMany], resources: { requests: { storage: 1Gi } } }
EOT
until_ok "claim made bound" field_is pvc/made .status.phase Bound
workload writer made
wait_pod writer
in_pod writer sh -c 'echo hello >/data/hello'
made=$(cluster kubectl get pv "$(field pvc/made .spec.volumeName)" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
equal "what it wrote" hello "$(s3 GET "$made/hello")"
in_pod writer rm /data/hello

# The address goes, another comes.
cluster kubectl -n kube-system delete pod -l k8s-app=kube-dns
cluster kubectl -n kube-system rollout status deployment/coredns --timeout="${wait_s}s"
noticed_nothing busy
equal "the Mountpoint Pod of before" "$serves" "$(mountpoint_pods data)"
remove_pod busy
remove_pod writer
kube delete pvc made
until_ok "no attachment is left" count_is 0 cluster kubectl get mountpoints3podattachments -o name
until_ok "no Mountpoint Pod is left" count_is 0 mountpoint_pods data
