"""zarr writes an array of 16 chunks."""

import kit
import numpy as np
import zarr


def run(folder, small):
    array = zarr.create_array(f"{folder}/array.zarr", shape=(1024, 1024), chunks=(256, 256), dtype="f4")
    array[:] = np.random.default_rng(23).random((1024, 1024), dtype=np.float32)
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(zarr.open_array(f"{folder}/array.zarr", mode="r")[:].tobytes())


kit.main(lambda folder, small: None, run, verify)
