# shellcheck shell=bash
# Two volumes in one pod have the modes and owners that their options say, in both of its containers, whatever umask, chmod and chown say. Who is
# not root enters with allow-other only. Options that are edited while a pod runs are those of the next pod: the first keeps what it has.
# A prefix with an equals sign is the volume's whole world, and there only once a file is.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

volume plain attributes="{ bucketName: $bucket, prefix: plain/ }"
volume strict attributes="{ bucketName: $bucket, cache: emptyDir, cacheEmptyDirSizeLimit: 64Mi }" options='[allow-delete, allow-overwrite, allow-other, uid=1000, gid=2000, dir-mode=0700, file-mode=0600, "prefix=tenant=a/files/"]'
kube apply -f - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: pair }
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - &container
      name: one
      image: $image
      command: [sh, -c, "sleep 2147483647 & wait"]
      volumeMounts:
        - { name: plain, mountPath: /plain }
        - { name: strict, mountPath: /strict }
    - { <<: *container, name: owner, securityContext: { runAsUser: 1000, runAsGroup: 2000 } }
    - { <<: *container, name: other, securityContext: { runAsUser: 3000, runAsGroup: 3000 } }
  volumes:
    - { name: plain, persistentVolumeClaim: { claimName: plain } }
    - { name: strict, persistentVolumeClaim: { claimName: strict } }
EOT
wait_pod pair
by() { # CONTAINER PROGRAM
    kube exec pair -c "$1" -- sh -c "$2"
}
equal "keys before a file is written" "" "$(s3_keys)"
by one 'mkdir /plain/sub && echo plain >/plain/sub/file && mkdir -m 777 /strict/sub && umask 0 && echo strict >/strict/sub/file && cp -r /strict/sub /strict/copy'
equal "the bucket's keys" "plain/sub/file tenant=a/files/copy/file tenant=a/files/sub/file" "$(s3_keys | LC_ALL=C sort | tr '\n' ' ' | sed 's/ $//')"
# Until the pod's engine shows an object, it shows what it knows of the file that was written; both are alike.
modes='stat -c "%a %u:%g" $1 $1/sub $1/sub/file | tr "\n" " "'
equal "modes by default" "755 755 644" "$(by one 'stat -c %a /plain /plain/sub /plain/sub/file' | tr '\n' ' ' | sed 's/ $//')"
equal "modes by options" "700 1000:2000 700 1000:2000 600 1000:2000 " "$(by one "set /strict; $modes")"
equal "modes for the other container" "700 1000:2000 700 1000:2000 600 1000:2000 " "$(by owner "set /strict; $modes")"
equal "modes by another way" "700 600" "$(by owner 'cd /strict/copy && stat -c %a ../sub ../sub/file' | tr '\n' ' ' | sed 's/ $//')"
equal "of a copy" "700 600" "$(by one 'stat -c %a /strict/copy /strict/copy/file' | tr '\n' ' ' | sed 's/ $//')"
equal "what the owner reads" strict "$(by owner 'cat /strict/sub/file')"
by owner 'echo owned >/strict/owned'
equal "what the owner wrote" owned "$(s3_get tenant=a/files/owned)"
# Both containers read through the volume's cache, which one of them filled.
head -c 5000000 /dev/urandom >"$scratch/random"
s3_put tenant=a/files/random "$scratch/random"
sum=$(sha256sum <"$scratch/random")
for container in owner one; do equal "what $container reads" "$sum" "$(by $container 'sha256sum </strict/random')"; done
pod=$(mountpoint_pods strict)
cached() { cluster run du -sk "$kubelet/pods/$(cluster kubectl -n mount-s3 get pod "$pod" -o 'jsonpath={.metadata.uid}')/volumes/kubernetes.io~empty-dir/local-cache" | cut -f 1; }
has_cached() { [ "$(cached)" -ge 4000 ] || { echo "$(cached) kB are cached"; return 1; }; }
until_ok "the cache filled" has_cached
refused "who is neither owner nor in the group" "Permission denied" by other 'cat /strict/sub/file'
refused "who is not root, without allow-other" "Permission denied" by other 'ls /plain'
refused "chown" "Operation not permitted" by one 'chown 7:7 /strict/sub/file'
by one 'chmod 777 /strict/sub/file' || true # refused or without effect
equal "modes after chmod" "600" "$(by one 'stat -c %a /strict/sub/file')"
refused "a symbolic link" "" by one 'ln -s /strict/sub/file /strict/link'
refused "a rename of a directory" "" by one 'mv /strict/sub /strict/moved'
equal "the file after what was refused" strict "$(by one 'cat /strict/sub/file')"

cluster kubectl patch pv "$namespace-strict" --type=merge \
    -p '{"spec":{"mountOptions":["allow-delete","allow-overwrite","allow-other","uid=1000","gid=2000","dir-mode=0750","file-mode=0640","prefix=tenant=a/files/"]}}'
workload later strict
wait_pod later
equal "modes of a later pod" "750 640" "$(in_pod later stat -c %a /data /data/sub/file | tr '\n' ' ' | sed 's/ $//')"
equal "the first pod keeps its own" "700 600" "$(by one 'stat -c %a /strict /strict/sub/file' | tr '\n' ' ' | sed 's/ $//')"
equal "Mountpoint Pods of the volume" 2 "$(mountpoint_pods strict | wc -l)"
remove_pod pair
remove_pod later
workload again strict
wait_pod again
equal "modes after both have gone" "750 640" "$(in_pod again stat -c %a /data /data/sub/file | tr '\n' ' ' | sed 's/ $//')"
remove_pod again
for each in plain strict; do until_ok "nothing of $each is left" count_is 0 mountpoint_pods $each; done
