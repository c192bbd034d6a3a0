"""A checkpoint is written as `.metadata.tmp` and renamed to `.metadata`, as the distributed checkpoints of torch are."""

import os

import kit


def run(folder, small):
    kit.write(f"{folder}/step-1/__0_0.distcp", bytes(range(256)) * 4096)
    kit.write(f"{folder}/step-1/.metadata.tmp", b"metadata" * 1000)
    os.rename(f"{folder}/step-1/.metadata.tmp", f"{folder}/step-1/.metadata")
    return verify(folder, small)


def verify(folder, small):
    names = sorted(os.listdir(f"{folder}/step-1"))
    return kit.digest(repr(names).encode(), *(open(f"{folder}/step-1/{name}", "rb").read() for name in names))


kit.main(lambda folder, small: None, run, verify)
