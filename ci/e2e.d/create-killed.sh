# shellcheck shell=bash
# The controller service is killed at each request of a CreateVolume: before the store has it, and when the store has done it and nobody has heard. The
# one that follows finishes: the claim is bound, there is one bucket for it, and the bucket has the driver's tags.
# needs: nobody beside it
# needs: its name
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash
. ci/kubernetes/gateway.bash
. ci/kubernetes/fronts.bash

claims=()
put_back() {
    for claim in "${claims[@]}"; do remove_class "$claim"; done
    # shellcheck disable=SC2119
    release_driver
    end_front
}
trap put_back EXIT
front holds 9016 9000 "$fronts/hold"
release_driver --set "s3.endpointUrl=http://$node_ip:9016" --set controller.replicas=1

# hold WORDS: such as `before 2`. let_go: whoever still waits goes on.
hold() { cluster run sh -c 'printf %s "$1" >"$2.new" && mv "$2.new" "$2"' sh "$1" "$fronts/hold"; }
let_go() { cluster run rm "$fronts/hold"; }
# Whole lines of what the front said since line $said.
front_says() { noted | tail -n "+$((said + 1))" | grep -E -- "$1"; }
controller_pid() {
    local pid
    for pid in $(cluster run pgrep -f '^/bin/scality-s3-csi-driver'); do
        if cluster run grep -qz '^CSI_CONTROLLER_ONLY=' "/proc/$pid/environ"; then echo "$pid"; fi
    done
}
buckets() { s3 GET "" | grep -oE '<Name>[^<]*' | cut -c7- | sort; }
buckets >"$scratch/before"
# one_more CLAIM: since the last time there is one bucket more, the claim's, and its tags are the driver's.
one_more() {
    local volume made tags
    volume=$(field "pvc/$1" .spec.volumeName)
    made=$(cluster kubectl get pv "$volume" -o 'jsonpath={.spec.csi.volumeAttributes.bucketName}')
    buckets >"$scratch/after"
    equal "buckets made for $1" "$made" "$(comm -13 "$scratch/before" "$scratch/after")"
    tags=$(s3 GET "$made?tagging=")
    holds "the tags of $1" "<Key>s3.csi.scality.com/cluster</Key>" "$tags"
    holds "the name in the tags of $1" "<Value>$volume</Value>" "$tags"
    mv "$scratch/after" "$scratch/before"
}

said=$(noted | wc -l)
claims+=(whole)
class_and_claim whole
one_more whole
noted | tail -n "+$((said + 1))" | tee "$scratch/requests"
requests=$(wc -l <"$scratch/requests")
[ "$requests" -ge 3 ] || fail "a CreateVolume has only $requests requests: does the front see them?"

deaths=0
for at in $(seq "$requests"); do
    for when in before after; do
        claim=$when-$at
        claims+=("$claim")
        said=$(noted | wc -l)
        victim=$(controller_pid)
        equal "controller services, of which one is killed" 1 "$(grep -c . <<<"$victim")"
        hold "$when $at"
        # It waits for the claim, which waits for the controller.
        (class_and_claim "$claim") &
        bound=$!
        until_ok "request $at is held" front_says "^held $when "
        say "killed $(front_says '^held ')"
        cluster run kill -KILL "$victim"
        until_ok "nobody waits for request $at" front_says '^dropped$'
        let_go
        # After a few deaths Kubernetes would wait longer than this test: the pod is made anew.
        cluster kubectl -n "$driver_namespace" delete pod -l app=s3-csi-controller --wait=false
        wait $bound || fail "the claim $claim"
        one_more "$claim"
        driver_is_settled
        deaths=$((deaths + 1))
    done
done
say "$deaths deaths, at each of $requests requests"
kube delete pvc --all --wait=false
