# shellcheck shell=bash
# The same driver with another store: an upgrade of the release switches to versitygw, a pod writes to a static volume, a second pod
# reads, and the store has the bytes. A second upgrade switches back.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

use_store versitygw
s3_bucket "$bucket"
trap release_driver EXIT
release_driver --set "s3.endpointUrl=$endpoint"

volume data
workload writer data
wait_pod writer
# One object by a single request, one by an upload of several parts.
in_pod writer sh -c 'mkdir /data/sub && seq 1 200000 >/data/sub/numbers.txt && dd if=/dev/urandom of=/tmp/large bs=1M count=20 && cp /tmp/large /data/large' 2>/dev/null
sums=$(in_pod writer sh -c 'seq 1 200000 | sha256sum && sha256sum </tmp/large')
equal "keys of the bucket in versitygw" "large sub/numbers.txt" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
equal "the objects' bytes" "$sums" "$(s3_get sub/numbers.txt | sha256sum && s3_get large | sha256sum)"
workload reader data
wait_pod reader
equal "the second pod reads" "$sums" "$(in_pod reader sh -c 'sha256sum </data/sub/numbers.txt && sha256sum </data/large')"
echo "from outside" >"$scratch/outside"
s3_put outside.txt "$scratch/outside"
equal "what was put there meanwhile" "from outside" "$(in_pod reader cat /data/outside.txt)"
in_pod reader sh -c 'echo new >/data/sub/numbers.txt && rm /data/large'
equal "an object that was replaced" new "$(s3_get sub/numbers.txt)"
equal "keys after a deletion" "outside.txt sub/numbers.txt" "$(s3_keys | tr '\n' ' ' | sed 's/ $//')"
use_store s3server
equal "the other store has none of it" "" "$(s3_keys)"
remove_pod writer
remove_pod reader
until_ok "the Mountpoint Pod gone" count_is 0 mountpoint_pods data
