# shellcheck shell=bash
# The mounter gives a mount up while another process holds a copy of its device. The kernel keeps the connection, readers wait, and the driver
# reports that the mount hangs and leaves it. When the copy is closed, readers get an error. No process of ours keeps such a copy.
# shellcheck disable=SC2154,SC2016 # given by ci/e2e; the program is quoted
. ci/kubernetes/driver.bash

volume data
workload reader data
wait_pod reader
in_pod reader sh -c 'echo hello >/data/hello'

mkfifo "$scratch/hold"
cluster run python3 -c '
import ctypes, os, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True)
device = next(int(it) for it in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{it}") == "/dev/fuse")
copy = libc.syscall(438, libc.syscall(434, pid, 0), device, 0)  # pidfd_getfd of pidfd_open
if copy < 0: sys.exit(os.strerror(ctypes.get_errno()))
print("held", flush=True)
sys.stdin.read()' "$(engine)" <"$scratch/hold" >"$scratch/holder" 2>&1 &
holder=$!
exec 7>"$scratch/hold"
until_ok "a second holder" grep -q held "$scratch/holder"

give_up
status=0
words=$(in_pod reader timeout 8 stat /data/not-looked-up-yet 2>&1) || status=$?
[ $status -eq 143 ] || fail "a reader must wait until it is ended; it ended with $status: $words"
until_ok "the driver says that it hangs" mount_refused reader "code = Unavailable"
holds "it names the mount" "$kubelet/" "$(mount_refused reader "code = Unavailable")"

exec 7>&-
wait $holder
refused "a reader, once the copy is gone" "not connected" in_pod reader stat /data/not-looked-up-yet
remove_pod reader
workload reader data
wait_pod reader
equal "after a restart of the pod" hello "$(in_pod reader cat /data/hello)"
