"""numpy writes an archive of arrays: a zip file, whose heads are written again."""

import kit
import numpy as np


def run(folder, small):
    random = np.random.default_rng(21)
    np.savez(f"{folder}/arrays.npz", a=random.random(100_000), b=random.random(1000))
    return verify(folder, small)


def verify(folder, small):
    with np.load(f"{folder}/arrays.npz") as arrays:
        return kit.digest(arrays["a"].tobytes(), arrays["b"].tobytes())


kit.main(lambda folder, small: None, run, verify)
