"""rsync copies a folder to the mount, each file under a temporary name that it renames."""

import os
import subprocess
import tempfile

import kit


def run(folder, small):
    with tempfile.TemporaryDirectory() as scratch:
        for n in range(20):
            kit.write(f"{scratch}/{n:02}", bytes([n]) * 50_000)
        done = subprocess.run(["rsync", "-r", f"{scratch}/", folder], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(*(open(f"{folder}/{n:02}", "rb").read() for n in range(20)))


kit.main(lambda folder, small: None, run, verify)
