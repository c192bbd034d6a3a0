"""h5py reads a part of each plane of an array without chunks: reads of 500,000 bytes, 8,000,000 apart."""

import h5py
import kit
import numpy as np

PLANE, PART = 1_000_000, 62_500


def planes(small):
    return 10 if small else 25


def prepare(folder, small):
    random = np.random.default_rng(5)
    with h5py.File(f"{folder}/planes.h5", "w") as file:
        data = file.create_dataset("planes", (planes(small), PLANE), dtype="f8")
        for n in range(planes(small)):
            data[n] = random.random(PLANE)


def run(folder, small):
    with h5py.File(f"{folder}/planes.h5", "r") as file:
        return kit.digest(file["planes"][:, 1000 : 1000 + PART].tobytes())


def direct(place, small):
    store, bucket = kit.arrow_s3(place)
    with store.open_input_file(f"{bucket}/planes.h5") as source, h5py.File(source, "r") as file:
        return kit.digest(file["planes"][:, 1000 : 1000 + PART].tobytes())


kit.main(prepare, run, needed=lambda folder, small: planes(small) * PART * 8, direct=direct)
