"""h5py writes a file of two arrays."""

import h5py
import kit
import numpy as np


def run(folder, small):
    random = np.random.default_rng(25)
    with h5py.File(f"{folder}/arrays.h5", "w") as file:
        file["a"], file["b"] = random.random(100_000), random.random((100, 100))
    return verify(folder, small)


def verify(folder, small):
    with h5py.File(f"{folder}/arrays.h5", "r") as file:
        return kit.digest(file["a"][:].tobytes(), file["b"][:].tobytes())


kit.main(lambda folder, small: None, run, verify)
