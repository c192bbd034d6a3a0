# shellcheck shell=bash
# The same files make the same image, whenever and wherever they were copied; another file makes another. The node takes it.
# needs: no driver
# shellcheck disable=SC2154 # given by ci/e2e

make() { "$top/ci/image" "$scratch/$1.tar" lab.test/twice:1 --libs --file "$scratch/$1:/bin/server" --link server:/bin/link --entrypoint '["/bin/server","--version"]'; }
cp "$release/s3server" "$scratch/first"
cp "$release/s3server" "$scratch/second"
touch -d 2001-01-01 "$scratch/second"
chmod 700 "$scratch/second"
cp "$release/s3server" "$scratch/third"
printf x >>"$scratch/third"
digest=$(make first)
equal "the second digest" "$digest" "$(umask 077 && make second)"
[ "$(make third)" != "$digest" ] || fail "another file has the same digest"
cmp "$scratch/first.tar" "$scratch/second.tar"

cluster load "$scratch/first.tar"
apply - <<EOT
apiVersion: v1
kind: Pod
metadata: { name: once, namespace: @namespace@ }
spec:
  restartPolicy: Never
  containers: [{ name: main, image: "lab.test/twice:1" }]
EOT
until_ok "the program and its libraries" field_is pod/once .status.phase Succeeded
holds "its words" "$("$release/s3server" --version)" "$(kube logs once)"
