# shellcheck shell=bash
# The image of the engine alone, as docs/hosts.md shows it: it mounts in a container beside the one that uses the files, by mount propagation,
# and unmounts when the pod ends. The image says what is in it.
# needs: no driver
# shellcheck disable=SC2154 # given by ci/e2e
. ci/kubernetes/driver.bash

python3 ci/release.d/check.py --image "$release/../images/engine.tar"
kube create secret generic keys --from-literal=id="$access_key" --from-literal=secret="$secret_key"
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
apply - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: alone, namespace: @namespace@ }
spec:
  terminationGracePeriodSeconds: 30
  initContainers:
    - name: directory
      image: @image@
      command: [mkdir, -p, /shared/data]
      volumeMounts: [{ name: shared, mountPath: /shared }]
  containers:
    - name: engine
      image: ghcr.io/scality/mount-s3:$version
      args: [--foreground, @bucket@, /shared/data, --endpoint-url, "@endpoint@", --region, us-east-1, --allow-other]
      env:
        - { name: AWS_ACCESS_KEY_ID, valueFrom: { secretKeyRef: { name: keys, key: id } } }
        - { name: AWS_SECRET_ACCESS_KEY, valueFrom: { secretKeyRef: { name: keys, key: secret } } }
      securityContext: { privileged: true }
      volumeMounts: [{ name: shared, mountPath: /shared, mountPropagation: Bidirectional }]
    - name: main
      image: @image@
      command: [sh, -c, "sleep 2147483647 & wait"]
      securityContext: { runAsUser: 1000 }
      volumeMounts: [{ name: shared, mountPath: /shared, mountPropagation: HostToContainer }]
  volumes: [{ name: shared, emptyDir: {} }]
EOT
seq 1 20000 >"$scratch/numbers"
s3_put numbers.txt "$scratch/numbers"
wait_pod alone
mounted() { kube exec alone -c main -- cat /shared/data/numbers.txt; }
until_ok "the file is seen beside the engine" mounted
equal "what is read" "$(sha256sum <"$scratch/numbers")" "$(mounted | sha256sum)"
kube exec alone -c engine -- /usr/bin/mount-s3 --version
holds "mount-s3-ctl finds the mount" /shared/data "$(kube exec alone -c engine -- /usr/bin/mount-s3-ctl status)"
uid=$(uid_of alone)
[ -n "$(mounts_below "$kubelet/pods/$uid/")" ] || fail "the node does not show the mount"
remove_pod alone
none_mounted_below "$kubelet/pods/$uid/" || fail "the mount stayed"
