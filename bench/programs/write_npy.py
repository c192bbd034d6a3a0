"""numpy writes one array."""

import kit
import numpy as np


def run(folder, small):
    np.save(f"{folder}/array.npy", np.random.default_rng(22).random(1_000_000))
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(np.load(f"{folder}/array.npy").tobytes())


kit.main(lambda folder, small: None, run, verify)
