"""Eight processes map one model at once and read all of it."""

import mmap
import os
import subprocess
import sys

import kit

COUNT = 8


def run(folder, small):
    name = f"{folder}/model.safetensors"
    readers = [subprocess.Popen([sys.executable, __file__, "one", name], stdout=subprocess.PIPE) for _ in range(COUNT)]
    told = [reader.communicate()[0] for reader in readers]
    if any(reader.returncode for reader in readers):
        raise RuntimeError("a reader failed")
    return kit.digest(*told)


def one(name):
    with open(name, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as model:
        print(kit.digest(model))


if sys.argv[1] == "one":
    one(sys.argv[2])
else:
    import tensors  # the readers don't need it

    kit.main(tensors.prepare, run, needed=lambda folder, small: os.path.getsize(f"{folder}/model.safetensors"))
