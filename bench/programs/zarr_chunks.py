"""zarr reads a corner of an array: 16 chunks of about 1 MiB."""

import kit
import numpy as np
import zarr

SIDE, CHUNK = 4096, 512


def prepare(folder, small):
    random = np.random.default_rng(4)
    array = zarr.create_array(f"{folder}/array.zarr", shape=(SIDE, SIDE), chunks=(CHUNK, CHUNK), dtype="f4", compressors=None)
    array[:] = random.random((SIDE, SIDE), dtype=np.float32)


def run(folder, small):
    array = zarr.open_array(f"{folder}/array.zarr", mode="r")
    return kit.digest(array[: 4 * CHUNK, : 4 * CHUNK].tobytes())


def direct(place, small):
    from zarr.storage import ObjectStore

    array = zarr.open_array(ObjectStore(kit.obstore_s3(place), read_only=True), path="array.zarr", mode="r")
    return kit.digest(array[: 4 * CHUNK, : 4 * CHUNK].tobytes())


kit.main(prepare, run, needed=lambda folder, small: 16 * CHUNK * CHUNK * 4, direct=direct)
