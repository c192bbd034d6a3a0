"""hostile.py ENGINE OTHER COMM CACHE: takes the place of an engine's socket towards the driver of its node, and asks for what no engine may have.

ENGINE is the process of the engine whose place it takes, OTHER that of another pod's; COMM and CACHE are directories of the first one's pod on the
node. For each case it says `refused CASE: WHY` or `TAKEN CASE: ANSWER`, and `served CASE` for the few that are right; at the end `done`. Each
broken connection waits for the driver's next one."""

import array
import ctypes
import json
import os
import select
import socket
import sys
import time

engine, other, comm, cache = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
PIDFD_GETFD = 438
libc = ctypes.CDLL(None, use_errno=True)


def device_of(pid):
    """A copy of the FUSE device that this process holds."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.stat(f"/proc/{pid}/fd/{fd}").st_rdev == os.makedev(10, 229):
            copy = libc.syscall(PIDFD_GETFD, os.pidfd_open(pid), int(fd), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), "pidfd_getfd")
            return copy
    raise LookupError(f"process {pid} holds no FUSE device")


def join_pod():
    """Enters the control groups of the engine's container, as its own processes are in them."""
    with open(f"/proc/{engine}/cgroup") as lines:
        for line in lines:
            _, controllers, path = line.strip().split(":", 2)
            # The node's systemd keeps its own hierarchies.
            if controllers and not controllers.startswith("name="):
                with open(f"/sys/fs/cgroup/{controllers}{path}/cgroup.procs", "w") as procs:
                    procs.write(str(os.getpid()))


def listens():
    at = os.path.join(comm, "engine.sock")
    if os.path.lexists(at):
        os.unlink(at)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(at)
    os.chmod(at, 0o777)
    listener.listen(1)
    return listener


class Line:
    """A connection of the driver, behind the first lines of both."""

    def __init__(self, listener, by_scrape=True):
        """A driver that dials for a scrape asks at once, and waits for a second; one that has just started does not ask."""
        while True:
            self.stream, _ = listener.accept()
            self.rest, self.number = b"", 0
            try:
                if self.read() is None:
                    continue
                self.send({"version": 1, "ids": 0})
                if not by_scrape:
                    return
                if (asked := self.read()) is not None:
                    self.send({"number": asked["number"], "usage": {"memory_bytes": 1}})
                    return
            except OSError:
                pass  # it waited no longer

    def read(self):
        while b"\n" not in self.rest:
            got = self.stream.recv(4096)
            if not got:
                return None
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def send(self, what, files=()):
        line = what if isinstance(what, bytes) else json.dumps(what).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self.stream.sendmsg([line], rights)

    def answer(self):
        """The driver's answer. Its own question is answered meanwhile."""
        while (said := self.read()) is not None:
            if "request" not in said:
                return said
            self.send({"number": said["number"], "usage": {"memory_bytes": 1}})
        return {"error": "the connection ended"}

    def ask(self, request, files=()):
        while True:
            self.number += 1
            self.send({"number": self.number, **request}, files)
            answer = self.answer()
            # A machine at work is no reason for a refusal.
            if not answer.get("busy"):
                return answer
            time.sleep(0.1)

    def ends(self):
        """Whether the driver ends the connection."""
        try:
            while self.stream.recv(4096):
                pass
        except ConnectionResetError:
            pass
        return {"error": "the connection ended"}


def told(case, answer):
    if "error" in answer and "id" not in answer:
        print(f"refused {case}: {answer['error']}", flush=True)
    else:
        print(f"TAKEN {case}: {answer}", flush=True)


def opens(name, path=None):
    stat = os.stat(path or os.path.join(cache, name))
    return {"request": "open", "name": name, "dev": stat.st_dev, "ino": stat.st_ino}


def is_served(line, case):
    """What an engine asks is answered: else nothing would be shown by refusals."""
    got = line.ask(opens(files[0]), [device])
    back = line.ask({"request": "close", "id": got.get("id", 0)}, [device])
    print(f"served {case}" if "id" in got and back.get("id") == got["id"] else f"TAKEN {case}: {got}, {back}", flush=True)
    return got.get("id", 0)


device, foreign = device_of(engine), device_of(other)
null, plain, unmounted = os.open("/dev/null", os.O_RDWR), os.memfd_create("plain"), os.open("/dev/fuse", os.O_RDWR)
files = sorted(os.path.relpath(os.path.join(at, name), cache) for at, _, names in os.walk(cache) for name in names)
files = [name for name in files if os.path.isfile(os.path.join(cache, name))]
os.symlink("/etc/passwd", os.path.join(cache, "link"))
os.symlink(os.path.dirname(files[0]) or ".", os.path.join(cache, "link-of-directory"))
os.mkdir(os.path.join(cache, "directory"))
os.mkfifo(os.path.join(cache, "fifo"))
with open(os.path.join(comm, "outside"), "w") as outside:
    outside.write("not of the cache")
os.rename(os.path.join(comm, "engine.sock"), os.path.join(comm, "engine.sock.real"))

try:
    # A process of no pod: not even a first line.
    with listens() as listener:
        stream, _ = listener.accept()
        told("a process outside the pod", {"error": "no word"} if not stream.recv(1) else {"id": 0})
    join_pod()
    with listens() as listener:
        line = Line(listener, by_scrape=False)
        old = is_served(line, "a file of the cache")
        whole = opens(files[0])
        rows = [
            ("a name above the cache", opens("../comm/outside", os.path.join(comm, "outside")), [device]),
            ("an absolute name", opens("/etc/passwd", "/etc/passwd"), [device]),
            ("a link", opens("link", "/etc/passwd"), [device]),
            ("a name through a link", opens("link-of-directory/" + os.path.basename(files[0]), os.path.join(cache, files[0])), [device]),
            ("a directory", opens("directory"), [device]),
            ("a FIFO", opens("fifo"), [device]),
            ("no name", {**whole, "name": ""}, [device]),
            ("a name that is not there", {**whole, "name": "nowhere"}, [device]),
            ("another inode", {**whole, "ino": whole["ino"] + 1}, [device]),
            ("another file system", {**whole, "dev": whole["dev"] + 1}, [device]),
            ("no inode", {"request": "open", "name": files[0], "dev": whole["dev"]}, [device]),
            ("/dev/null as descriptor", whole, [null]),
            ("a file as descriptor", whole, [plain]),
            ("a device that is not mounted", whole, [unmounted]),
            ("another pod's device", whole, [foreign]),
            ("no descriptor", whole, []),
            ("two descriptors", whole, [device, device]),
            ("more descriptors than fit", whole, [device] * 6),
            ("an unknown number", {"request": "close", "id": 4_000_000}, [device]),
            ("a number that was taken back", {"request": "close", "id": old}, [device]),
            ("a number of another pod's mount", {"request": "close", "id": 1}, [foreign]),
            ("an unknown request", {"request": "mount", "name": files[0]}, [device]),
        ]
        for case, request, with_files in rows:
            told(case, line.ask(request, with_files))
        for case, words in [("no JSON", b"open everything\n"), ("an answer to nothing", b'{"number":7,"id":7}\n'), ("an empty line", b"\n")]:
            line.send(words)
            told(case, line.answer())
        is_served(line, "a file of the cache after all that")

        line.send(b'{"number":9,"request":"op')
        line.stream.shutdown(socket.SHUT_WR)
        told("half a line", line.ends())

        line = Line(listener)
        try:
            line.send(b"x" * 9000 + b"\n")
        except OSError:
            pass  # the driver may be quick
        told("a long line", line.ends())

        line = Line(listener)
        try:
            for _ in range(200):
                line.send(b" ", [device] * 250)
        except OSError:
            pass
        told("a flood of descriptors", line.ends())

        line = Line(listener)
        line.stream.setblocking(False)
        request = json.dumps({"number": 1, **whole}).encode() + b"\n"
        while True:
            # It reads none of the answers, and must not be read for ever.
            _, ready, broken = select.select([], [line.stream], [line.stream], 60)
            try:
                if not ready and not broken:
                    told("a flood of requests", {"id": "the driver waits for an engine that does not read"})
                    break
                line.stream.send(request)
            except BlockingIOError:
                pass
            except OSError as error:
                told("a flood of requests", {"error": f"the connection ended: {error.strerror}"})
                break

        line = Line(listener)
        is_served(line, "a file of the cache after floods")
        print("done", flush=True)
finally:
    for name in ("link", "link-of-directory", "fifo"):
        os.unlink(os.path.join(cache, name))
    os.rmdir(os.path.join(cache, "directory"))
    os.unlink(os.path.join(comm, "outside"))
    os.rename(os.path.join(comm, "engine.sock.real"), os.path.join(comm, "engine.sock"))
