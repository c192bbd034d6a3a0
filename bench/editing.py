#!/usr/bin/env python3
"""Programs that change files, on file systems over a bucket, in one run: outcome, seconds, and when another client has the right bytes.

Each file system gets a new bucket of s3server, which answers 20 ms late, and does every task in a folder of its own. A task is made ready on
the local disk, and copied to the bucket by another client, before its time begins. After it, a read-only mount of mount-s3, which asks the store
each time, verifies the folder, again and again for up to 30 s. Then the file system is unmounted, and the folder verified once more.

    bench/editing.py --built target/release [--geesefs FILE] [--s3fs] [--rclone] [--rounds 1] [--latency-ms 20] [--task NAME]...

It needs root, git, sqlite (Python's), pip, rsync, vim and tar.
"""

import argparse
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

KEY, SECRET, BUCKET = "bench", "bench-secret", "edited"
TASK_LIMIT_S, SEEN_LIMIT_S, END_LIMIT_S = 120, 30, 120
MIB = 1 << 20
NAMES = {os.strerror(number).lower(): name for number, name in errno.errorcode.items()}
GIT = ["git", "-c", "safe.directory=*", "-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "gc.auto=0"]


def sh(line, folder):
    """A line of a shell in a folder; raises with its last words."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=folder, capture_output=True, text=True, timeout=TASK_LIMIT_S,
                          env={**os.environ, "HOME": "/nonexistent", "GIT_CONFIG_SYSTEM": "/dev/null", "PIP_CACHE_DIR": "/nonexistent"})
    if done.returncode:
        raise RuntimeError((done.stderr or done.stdout).strip() or f"status {done.returncode}")
    return done.stdout


def expect(is_right, what):
    if not is_right:
        raise AssertionError(what)


def files(folder):
    """Each file below the folder, with the digest of its bytes."""
    found = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def tree(folder, count=100):
    for n in range(count):
        os.makedirs(f"{folder}/d{n % 10}", exist_ok=True)
        with open(f"{folder}/d{n % 10}/f{n}", "wb") as file:
            file.write(f"{n}\n".encode() * (n * 7 + 1))


class Task:
    """`prepare(ready)` fills the folder that the bucket has before; `run(folder, scratch)` is timed; `verify(folder, scratch)` raises."""

    def prepare(self, ready, scratch):
        pass


class MvFile(Task):
    """`mv` of a file of 20 MB"""

    def prepare(self, ready, scratch):
        with open(f"{ready}/old", "wb") as file:
            file.write(os.urandom(20_000_000))
        self.expected = files(ready)["old"]

    def run(self, folder, scratch):
        sh("mv old new", folder)

    def verify(self, folder, scratch):
        expect(files(folder) == {"new": self.expected}, "other files or bytes")


class MvDirectory(Task):
    """`mv` of a directory of 100 files"""

    def prepare(self, ready, scratch):
        tree(f"{ready}/old")
        self.expected = files(f"{ready}/old")

    def run(self, folder, scratch):
        sh("mv old new", folder)

    def verify(self, folder, scratch):
        expect(sorted(os.listdir(folder)) == ["new"], f"names {os.listdir(folder)}")
        expect(files(f"{folder}/new") == self.expected, "other files or bytes")


class Append(Task):
    """`>>` ten times"""

    def prepare(self, ready, scratch):
        with open(f"{ready}/log", "w") as file:
            file.write("first\n")

    def run(self, folder, scratch):
        sh("for i in $(seq 10); do echo line $i >> log; done", folder)

    def verify(self, folder, scratch):
        with open(f"{folder}/log") as file:
            expect(file.read() == "first\n" + "".join(f"line {n}\n" for n in range(1, 11)), "other lines")


class Sqlite(Task):
    """sqlite, 20 commits"""

    def run(self, folder, scratch):
        with contextlib.closing(sqlite3.connect(f"{folder}/base", isolation_level=None)) as base:
            base.execute("create table t (n integer)")
            for n in range(20):
                base.execute("insert into t values (?)", (n,))

    def verify(self, folder, scratch):
        shutil.copy(f"{folder}/base", f"{scratch}/copy")
        with contextlib.closing(sqlite3.connect(f"{scratch}/copy")) as base:
            expect(base.execute("pragma integrity_check").fetchone()[0] == "ok", "not intact")
            expect(base.execute("select count(*), sum(n) from t").fetchone() == (20, 190), "other rows")
        expect(os.listdir(folder) == ["base"], f"names {os.listdir(folder)}")


def verify_repository(folder, scratch):
    """git finds its objects, and the work tree as committed, in a copy: it writes an index."""
    shutil.copytree(folder, f"{scratch}/copy")
    sh("git config core.fileMode false && git fsck --strict && git reset -q && test -z \"$(git status --porcelain)\" && test $(git ls-files | wc -l) = 100", f"{scratch}/copy")


class GitCommit(Task):
    """git `init`, `add` of 100 files, `commit`"""

    def prepare(self, ready, scratch):
        tree(f"{ready}/tree")

    def run(self, folder, scratch):
        sh(f"{' '.join(GIT)} init -q tree && cd tree && {' '.join(GIT)} add . && {' '.join(GIT)} commit -q -m one", folder)

    def verify(self, folder, scratch):
        verify_repository(f"{folder}/tree", scratch)


class GitClone(Task):
    """`git clone` of 100 files"""

    def prepare(self, ready, scratch):
        tree(f"{scratch}/origin")
        sh(f"{' '.join(GIT)} init -q && {' '.join(GIT)} add . && {' '.join(GIT)} commit -q -m one", f"{scratch}/origin")
        self.origin = f"{scratch}/origin"

    def run(self, folder, scratch):
        sh(f"{' '.join(GIT)} clone -q --no-local {self.origin} clone", folder)

    def verify(self, folder, scratch):
        verify_repository(f"{folder}/clone", scratch)


class Pip(Task):
    """`pip install --target`, 100 modules"""

    def prepare(self, ready, scratch):
        about = "tried-1.0.dist-info/"
        parts = {about + "METADATA": "Metadata-Version: 2.1\nName: tried\nVersion: 1.0\n",
                 about + "WHEEL": "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "tried/__init__.py": ""}
        parts.update({f"tried/m{n}.py": f"n = {n}\n" for n in range(100)})
        parts[about + "RECORD"] = "".join(f"{name},,\n" for name in [*parts, about + "RECORD"])
        with zipfile.ZipFile(f"{scratch}/tried-1.0-py3-none-any.whl", "w") as archive:
            for name, text in parts.items():
                archive.writestr(name, text)

    def run(self, folder, scratch):
        sh(f"python3 -m pip install -q --no-index --no-compile --root-user-action ignore --disable-pip-version-check --target site {scratch}/*.whl", folder)

    def verify(self, folder, scratch):
        sh("python3 -B -c 'import sys; sys.path.insert(0, \"site\"); import tried.m99; assert tried.m99.n == 99' && test $(ls site/tried/*.py | wc -l) = 101", folder)


class RsyncInplace(Task):
    """`rsync --inplace` of a changed file of 50 MB"""

    def prepare(self, ready, scratch):
        data = bytearray(os.urandom(50_000_000))
        with open(f"{ready}/file", "wb") as file:
            file.write(data)
        data[30_000_000:30_000_100] = bytes(100)
        with open(f"{scratch}/file", "wb") as file:
            file.write(data)
        self.expected = files(scratch)["file"]

    def run(self, folder, scratch):
        sh(f"rsync --ignore-times --inplace --no-whole-file {scratch}/file ./file", folder)

    def verify(self, folder, scratch):
        expect(files(folder) == {"file": self.expected}, "other bytes")


class Sed(Task):
    """`sed -i`"""

    program = "sed -i 's/^500$/changed/' text"

    def prepare(self, ready, scratch):
        with open(f"{ready}/text", "w") as file:
            file.writelines(f"{n}\n" for n in range(1000))

    def run(self, folder, scratch):
        sh(self.program, folder)

    def verify(self, folder, scratch):
        expect(os.listdir(folder) == ["text"], f"names {os.listdir(folder)}")
        with open(f"{folder}/text") as file:
            expect(file.read() == "".join("changed\n" if n == 500 else f"{n}\n" for n in range(1000)), "other lines")


class Vim(Sed):
    """`vim -es`, with its swap file"""

    program = "vim -es -u NONE -i NONE -c 'set swapfile' -c '%s/^500$/changed/' -c wq text"


class Tar(Task):
    """`tar -x` of 100 files"""

    def prepare(self, ready, scratch):
        tree(f"{scratch}/tree")
        sh("tar -cf tree.tar tree", scratch)
        self.expected = files(f"{scratch}/tree")

    def run(self, folder, scratch):
        sh(f"tar --no-same-owner -xf {scratch}/tree.tar", folder)

    def verify(self, folder, scratch):
        expect(files(f"{folder}/tree") == self.expected, "other files or bytes")


class Patch(Task):
    """1 GiB patched in 10 places"""

    places = [n * 100 * MIB + 4321 for n in range(10)]

    def prepare(self, ready, scratch):
        block = os.urandom(MIB)
        with open(f"{ready}/large", "w+b") as file:
            for n in range(1024):
                file.write(n.to_bytes(8, "big") + block[8:])
            file.flush()
            whole = hashlib.sha256()
            file.seek(0)
            for n in range(1024):
                part = bytearray(file.read(MIB))
                for place in self.places:
                    if place // MIB == n:
                        part[place % MIB:place % MIB + 7] = b"patched"
                whole.update(part)
        self.expected = whole.hexdigest()

    def run(self, folder, scratch):
        descriptor = os.open(f"{folder}/large", os.O_RDWR)
        try:
            for place in self.places:
                os.pwrite(descriptor, b"patched", place)
        finally:
            os.close(descriptor)

    def verify(self, folder, scratch):
        expect(files(folder) == {"large": self.expected}, "other bytes")


TASKS = [MvFile, MvDirectory, Append, Sqlite, GitCommit, GitClone, Pip, RsyncInplace, Sed, Vim, Tar, Patch]


class Server:
    """s3server over a folder of its own, each of whose answers comes late."""

    def __init__(self, built, work, latency_ms):
        self.store = f"{work}/store"
        with open(f"{work}/faults", "w") as file:
            json.dump([{"effect": {"delay": {"for_ms": latency_ms}}}] if latency_ms else [], file)
        self.process = subprocess.Popen(
            [f"{built}/s3server", self.store, "--listen", "127.0.0.1:0", "--bucket", BUCKET, "--access-key", KEY, "--port-file", f"{work}/port", "--faults",
             f"{work}/faults"], env={**os.environ, "S3SERVER_SECRET_KEY": SECRET})
        wait_until(lambda: os.path.exists(f"{work}/port") and os.path.getsize(f"{work}/port"), "s3server listens")
        with open(f"{work}/port") as file:
            self.endpoint = f"http://127.0.0.1:{file.read().strip()}"

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def wait_until(is_true, what, limit_s=30):
    end = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError(f"{limit_s} s, and not yet: {what}")
        time.sleep(0.05)


class Mounted:
    """A daemon in the foreground, and its mount point."""

    def __init__(self, command, folder):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.log = open(f"{folder}.log", "w")
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        # rclone's SDK does not start with it.
        environment.pop("AWS_CA_BUNDLE", None)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        wait_until(lambda: os.path.ismount(folder) or self.process.poll() is not None, f"{command[0]} has mounted")
        if self.process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended; see {folder}.log")

    def end(self):
        """Unmounts and waits for the daemon, which may still store."""
        for _ in range(100):
            if subprocess.run(["umount", self.folder], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            subprocess.run(["umount", "-l", self.folder])
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def commands(arguments):
    """For each file system a name, and what makes its command of an endpoint, a mount point and a folder for files of its own."""
    ours = [f"{arguments.built}/mount-s3", BUCKET]
    plain = lambda url: ["--endpoint-url", url, "--region", "us-east-1", "--force-path-style", "--foreground"]
    found = {}
    for commit in ["close", "fsync", "disk"]:
        found[f"mount-s3, `{commit}`"] = lambda url, folder, own, commit=commit: [
            *ours, folder, *plain(url), "--mode", "full", "--stage", f"{own}/stage", "--commit", commit, "--state-dir", f"{own}/state", "--store", "aws"]
    if arguments.geesefs:
        found["geesefs"] = lambda url, folder, own: [
            arguments.geesefs, "-f", "--endpoint", url, "--region", "us-east-1", "--list-type", "2", "--fsync-on-close", BUCKET, folder]
    if arguments.s3fs:
        found["s3fs"] = lambda url, folder, own: [
            "s3fs", BUCKET, folder, "-f", "-o", f"url={url},use_path_request_style,endpoint=us-east-1,passwd_file={password(own)}"]
    if arguments.rclone:
        found["rclone, `full`"] = lambda url, folder, own: [
            "rclone", "mount", f":s3:{BUCKET}", folder, "--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth", "--s3-endpoint", url,
            "--s3-region", "us-east-1", "--s3-force-path-style", "--s3-no-check-bucket", "--vfs-cache-mode", "full", "--cache-dir", f"{own}/cache"]
    reader = lambda url, folder, own: [*ours, folder, *plain(url), "--read-only", "--state-dir", f"{own}/reader"]
    return found, reader


def password(own):
    path = f"{own}/passwd-s3fs"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(f"{KEY}:{SECRET}\n")
    return path


def why(error):
    """The errno in a program's words, else the words."""
    if isinstance(error, OSError) and error.errno in errno.errorcode:
        return errno.errorcode[error.errno]
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not done in {TASK_LIMIT_S} s"
    words = str(error).lower()
    for text, name in NAMES.items():
        if text in words:
            return name
    return re.sub(r"\s+", " ", str(error))[-80:]


def once(task, scratch, mount, reader, work):
    """One task: seconds, or why it failed; then the seconds until another client verified it, or why it can't."""
    name = type(task).__name__
    said = {}
    begun = time.monotonic()
    try:
        task.run(f"{mount.folder}/{name}", scratch)
        said["seconds"] = time.monotonic() - begun
    except Exception as error:  # the outcome of a program, whatever it says
        said["failed"] = why(error)
        said["words"] = str(error)[:600]
        return said
    begun = time.monotonic()
    while True:
        verified = tempfile.mkdtemp(dir=work)
        try:
            task.verify(f"{reader.folder}/{name}", verified)
            said["seen_s"] = time.monotonic() - begun
            break
        except Exception as error:  # not yet, or never
            said["unseen"] = str(error)[:300]
            if time.monotonic() - begun > SEEN_LIMIT_S:
                break
            time.sleep(0.2)
        finally:
            shutil.rmtree(verified, ignore_errors=True)
    return said


def run(name, command, reader_command, arguments, wanted):
    """All tasks on one file system."""
    with tempfile.TemporaryDirectory(prefix="editing-") as work:
        tasks = []
        for kind in wanted:
            task = kind()
            ready, scratch = f"{work}/store/{BUCKET}/{kind.__name__}", f"{work}/scratch-{kind.__name__}"
            os.makedirs(ready)
            os.makedirs(scratch)
            task.prepare(ready, scratch)
            tasks.append((task, scratch))
        server = Server(arguments.built, work, arguments.latency_ms)
        said = {}
        mount = reader = None
        try:
            mount = Mounted(command(server.endpoint, f"{work}/mount", work), f"{work}/mount")
            reader = Mounted(reader_command(server.endpoint, f"{work}/again", work), f"{work}/again")
            for task, scratch in tasks:
                # A folder that holds nothing is no object.
                os.makedirs(f"{mount.folder}/{type(task).__name__}", exist_ok=True)
                said[type(task).__name__] = once(task, scratch, mount, reader, work)
                print(name, type(task).__name__, said[type(task).__name__], file=sys.stderr, flush=True)
        finally:
            if mount:
                mount.end()
        for task, _ in tasks:
            row = said[type(task).__name__]
            if "seconds" not in row:
                continue
            verified = tempfile.mkdtemp(dir=work)
            try:
                task.verify(f"{reader.folder}/{type(task).__name__}", verified)
                row["ends"] = True
            except Exception as error:  # lost, or other bytes
                row["ends"] = False
                row["lost"] = str(error)[:300]
                print(name, type(task).__name__, "after the unmount:", row["lost"], file=sys.stderr, flush=True)
        reader.end()
        server.end()
        return said


def cell(rows):
    """The cell of a task: the median of its seconds, and the most until another client verified it, unless it did at its first look."""
    failed = [row["failed"] for row in rows if "failed" in row]
    if failed:
        return failed[0]
    text = f"{statistics.median(row['seconds'] for row in rows):.2f}"
    if not all(row["ends"] for row in rows):
        return text + "; **wrong in the bucket**"
    if all("unseen" not in row for row in rows):
        return text
    if not all("seen_s" in row for row in rows):
        return text + f"; not yet in the bucket {SEEN_LIMIT_S} s later, but when unmounted"
    return text + f"; +{max(row['seen_s'] for row in rows):.0f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--built", required=True, help="the folder of mount-s3 and s3server")
    parser.add_argument("--geesefs")
    parser.add_argument("--s3fs", action="store_true")
    parser.add_argument("--rclone", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--latency-ms", type=int, default=20)
    parser.add_argument("--task", action="append", default=[])
    parser.add_argument("--on", action="append", default=[], help="names of file systems; all without")
    arguments = parser.parse_args()
    arguments.built = os.path.abspath(arguments.built)
    wanted = [kind for kind in TASKS if not arguments.task or kind.__name__ in arguments.task]
    systems, reader = commands(arguments)
    systems = {name: command for name, command in systems.items() if not arguments.on or name in arguments.on}
    rows = {name: {kind.__name__: [] for kind in wanted} for name in systems}
    for _ in range(arguments.rounds):
        for name, command in systems.items():
            for task, row in run(name, command, reader, arguments, wanted).items():
                rows[name][task].append(row)
    print("| work | " + " | ".join(systems) + " |")
    print("|---|" + "---|" * len(systems))
    for kind in wanted:
        print(f"| {kind.__doc__} | " + " | ".join(cell(rows[name][kind.__name__]) for name in systems) + " |")


main()
