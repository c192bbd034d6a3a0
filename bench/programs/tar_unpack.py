"""tar unpacks an archive that lies on the mount."""

import os
import subprocess
import tempfile

import kit
import numpy as np
import tarfile


def prepare(folder, small):
    random = np.random.default_rng(12)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(f"{folder}/archive.tar", "w") as tar:
        for n in range(20 if small else 200):
            kit.write(f"{scratch}/{n:04}", random.bytes(400_000))
            tar.add(f"{scratch}/{n:04}", arcname=f"{n:04}")


def run(folder, small):
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["tar", "-xf", f"{folder}/archive.tar", "-C", scratch], check=True)
        return kit.digest(*(open(f"{scratch}/{name}", "rb").read() for name in sorted(os.listdir(scratch))))


kit.main(prepare, run, needed=lambda folder, small: os.path.getsize(f"{folder}/archive.tar"))
