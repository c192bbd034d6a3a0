# shellcheck shell=bash
# A ReadWriteOnce volume with fsType and a pod with fsGroup, over 10,000 objects. Kubernetes changes no owner (fsGroupPolicy: None): until the pod looks
# into the bucket, no request writes, and fewer than ten ask anything, where a listing of all takes ten. Files show the group. A front before the
# store notes what comes.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/fronts.bash

# A folder is a bucket of this store: ten thousand files are made faster than sent.
kube create secret generic store --from-literal="secret=$secret_key"
kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: store }
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  initContainers:
    - name: files
      image: $image
      command: [sh, -c, "mkdir -p /data/$bucket/many && cd /data/$bucket/many && seq 10000 | sed 's/^/file-/' | xargs touch"]
      volumeMounts: [{ name: data, mountPath: /data }]
  containers:
    - name: store
      image: lab.test/stores:1
      command: [/bin/s3server, /data, --listen, "0.0.0.0:9020", --access-key, $access_key]
      env: [{ name: S3SERVER_SECRET_KEY, valueFrom: { secretKeyRef: { name: store, key: secret } } }]
      readinessProbe: { tcpSocket: { port: 9020 }, periodSeconds: 1 }
      volumeMounts: [{ name: data, mountPath: /data }]
  volumes: [{ name: data, emptyDir: {} }]
EOT
wait_pod store
put_back() {
    end_front
    release_driver
}
trap put_back EXIT
front heads 9021 9020
url=http://$node_ip:9021
release_driver --set "s3.allowedEndpoints={$url}"

volume data modes='[ReadWriteOnce]' fstype=ext4 attributes="{ bucketName: $bucket, endpointUrl: '$url' }"
workload reader data security='{ runAsUser: 1234, runAsGroup: 1234, fsGroup: 2000 }'
wait_pod reader
before=$(noted)
say "requests until the pod is ready:" "$before"
equal "requests that write" "" "$(grep -vE '^(GET|HEAD) ' <<<"$before" || true)"
[ "$(grep -c . <<<"$before")" -lt 10 ] || fail "the bucket was looked through before the pod began"

equal "files that the pod sees" 10000 "$(in_pod reader sh -c 'ls /data/many | wc -l')"
equal "their group" 2000 "$(in_pod reader stat -c %g /data/many/file-1)"
equal "the directory's group" 2000 "$(in_pod reader stat -c %g /data/many)"
in_pod reader sh -c 'echo written >/data/many/new'
equal "requests that write" 1 "$(noted | grep -cvE '^(GET|HEAD) ')"
remove_pod reader
