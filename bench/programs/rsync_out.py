"""rsync copies a folder out of the mount."""

import os
import subprocess
import tempfile

import kit
import numpy as np

LENGTH = 200_000


def count(small):
    return 40 if small else 400


def prepare(folder, small):
    random = np.random.default_rng(13)
    for n in range(count(small)):
        kit.write(f"{folder}/{n % 4}/{n:04}", random.bytes(LENGTH))


def run(folder, small):
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["rsync", "-a", f"{folder}/", scratch], check=True, capture_output=True)
        return kit.digest(*(open(f"{scratch}/{n % 4}/{n:04}", "rb").read() for n in range(count(small))))


kit.main(prepare, run, needed=lambda folder, small: count(small) * LENGTH)
