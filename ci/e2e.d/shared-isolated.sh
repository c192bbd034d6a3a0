# shellcheck shell=bash
# Engines of one pod are kept from one another. Files are opened inside an engine: its own keys open, its neighbour's keys and memory do not. A process
# of the same user that nothing confines reads no memory, environment or descriptor of any process of the pod. An engine that takes all the memory
# that it gets takes no more than its share: its neighbour reads on, and the container is never out of memory.
# needs: nobody beside it
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; programs are quoted
. ci/kubernetes/driver.bash

put_back() { release_driver; }
trap put_back EXIT
share=256
release_driver --set node.mounter=shared --set shared.experimental=true --set shared.maxVolumes=2 --set shared.resources.limits.memory=$((2 * share))Mi
head -c $((64 << 20)) /dev/urandom >"$scratch/random"
sum=$(sha256sum <"$scratch/random")
s3_put random "$scratch/random"
s3_put other/random "$scratch/random"
volume one
volume two attributes="{ bucketName: $bucket, prefix: other/ }"
workload first one propagation=HostToContainer
workload other two propagation=HostToContainer
for it in first other; do wait_pod $it; done
engine_of() { # PREFIX
    cluster run sh -c 'for it in $(pgrep -f "^/mountpoint-s3/bin/mount-s3 $0 "); do
        if tr "\0" "\n" </proc/$it/cmdline | grep -q "^--prefix"; then has=prefix; else has=none; fi
        [ $has != "$1" ] || echo $it
    done' "$bucket" "$1"
}
# The engine of a volume; its helper has the same program.
main_of() { for it in $(engine_of "$1"); do cluster run sh -c '[ "$(tr "\0" " " <"/proc/$(ps -o ppid= -p "$0" | tr -d " ")/cmdline" | cut -d " " -f 1)" != /bin/scality-s3-csi-mounter ] || echo "$0"' "$it"; done; }
one=$(main_of none) two=$(main_of prefix)
[[ -n $one && -n $two ]] || fail "no engines: ${one:-none}, ${two:-none}"
inside() { cluster run python3 -c "$(cat ci/kubernetes/inside.py)" "$@"; }
# Its numbers are those of the pod's own processes.
in_pod_is() { cluster run awk '$1 == "NSpid:" { print $NF }' "/proc/$1/status"; }
keys_of() { # ENGINE
    local source
    source=$(cluster run sh -c 'tr "\0" "\n" </proc/$0/cmdline | sed -n "s|^/comm/\(sh-[a-z0-9]*\)/engine.sock$|\1|p"' "$1")
    cluster run sh -c 'cd "/proc/$0/root" && find "comm/$1/credentials" -type f | sed "s|^|/|"' "$1" "$source"
}
own=$(keys_of "$one") others=$(keys_of "$two")
[[ -n $own && -n $others ]] || fail "no keys of the engines"
equal "its own keys" opened "$(for it in $own; do inside "$one" open "$it"; done | sort -u)"
equal "its neighbour's keys" EACCES "$(for it in $others; do inside "$one" open "$it"; done | sort -u)"
number=$(in_pod_is "$two")
for it in mem environ maps; do equal "its neighbour's $it" EACCES "$(inside "$one" open "/proc/$number/$it")"; done
for it in /comm /proc/1/environ /var/lib/mount-s3; do equal "$it" EACCES "$(inside "$one" open "$it")"; done

user=$(cluster run awk '$1 == "Uid:" { print $2 }' "/proc/$one/status")
group=$(cluster run awk '$1 == "Gid:" { print $2 }' "/proc/$one/status")
[ "$user" != 0 ] || fail "engines run as root"
pod_processes=$(cluster run sh -c 'for it in /proc/[0-9]*; do [ "$(readlink "$it/ns/pid")" != "$(readlink "/proc/$0/ns/pid")" ] || basename "$it"; done' "$one")
[ "$(wc -w <<<"$pod_processes")" -ge 5 ] || fail "not all processes of the pod: $pod_processes"
as_engine() { cluster run setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"; }
equal "a control: its own process" read "$(as_engine sh -c 'cat /proc/$$/environ >/dev/null && echo read')"
for it in $pod_processes; do
    for file in environ mem maps; do
        equal "$file of process $it for its own user" refused "$(as_engine sh -c 'dd if="/proc/$0/$1" of=/dev/null bs=1 count=1 2>/dev/null && echo read || echo refused' "$it" "$file")"
    done
    equal "descriptors of process $it for its own user" refused "$(as_engine sh -c 'ls "/proc/$0/fd" >/dev/null 2>&1 && echo read || echo refused' "$it")"
done

# The engine takes all that it gets.
in_pod other sh -c 'while ! test -e /tmp/stop; do sha256sum </data/random || exit 1; sleep 0.05; done' >"$scratch/reads" 2>&1 &
reading=$!
gets_on() { [ "$(wc -l <"$scratch/reads")" -gt "$1" ]; }
until_ok "the neighbour reads" gets_on 0
kills() { cluster run sh -c 'cat "/sys/fs/cgroup$(sed -n "s/^0:://p" /proc/$0/cgroup)/memory.events" 2>/dev/null | awk "\$1 == \"oom_kill\" { print \$2 }"' "$two"; }
before=$(kills)
taken=$(inside "$one" take 4)
say "it took (MiB): $taken"
[[ ${taken% *} -ge 64 && ${taken% *} -le $share ]] || fail "an engine with a share of $share MiB took $taken"
# What it reads now is right, or an error; it may end.
read=$(in_pod first sha256sum /data/random 2>/dev/null | sed 's|/data/random|-|') || true
[ -z "$read" ] || equal "what it reads" "$sum" "$read"
until_ok "the neighbour reads on" gets_on "$(wc -l <"$scratch/reads")"
# It is killed if it has not ended; its mounter starts the next one.
cluster run sh -c 'kill -KILL "$0" 2>/dev/null || true' "$one"
reads() { [ "$(in_pod first sha256sum /data/random 2>&1 | sed 's|/data/random|-|')" = "$sum" ]; }
until_ok "the volume again" reads
until_ok "the neighbour reads on" gets_on "$(wc -l <"$scratch/reads")"
equal "the engine of the neighbour" "$two" "$(main_of prefix)"
equal "deaths for want of the container's memory" "$before" "$(kills)"
in_pod other touch /tmp/stop
wait $reading || fail "the neighbour ended with an error: $(tail -n 1 "$scratch/reads")"
equal "reads of the neighbour, all right" "$sum" "$(sort -u "$scratch/reads")"
for it in first other; do remove_pod $it; done
none() { [ -z "$(mounts_below "$plugin/mnt/")" ] || { mounts_below "$plugin/mnt/"; return 1; }; }
wait_s=300 until_ok "all sources have left" none
