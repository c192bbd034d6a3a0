# shellcheck shell=bash
# A pod reads an object from each store of the lab, at the node's address.
# needs: no driver
# shellcheck disable=SC2154 # given by ci/e2e

apply pod.yaml pod=reader
seq 1 20000 >"$scratch/numbers"
sum=$(sha256sum <"$scratch/numbers")
wait_pod reader
for each in s3server versitygw; do
    use_store "$each"
    [ "$each" = s3server ] || s3_bucket "$bucket"
    s3_put data/numbers.txt "$scratch/numbers"
    equal "$each: keys of the bucket" data/numbers.txt "$(s3_keys)"
    url=$(s3_url data/numbers.txt)
    equal "$each: what the pod reads" "$sum" "$(in_pod reader wget -q -O - "$url" | sha256sum)"
    refused "$each: a reader without a signature" 403 in_pod reader wget -q -O - "$endpoint/$bucket/data/numbers.txt"
done
