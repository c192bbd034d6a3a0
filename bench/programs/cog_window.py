"""rasterio reads a window of a tiled picture, and the whole of it in a small overview."""

import kit
import numpy as np
import rasterio
from rasterio.enums import Resampling
from rasterio.windows import Window


def side(small):
    return 4096 if small else 16_384


def prepare(folder, small):
    random = np.random.default_rng(9)
    profile = dict(driver="GTiff", dtype="uint16", count=1, width=side(small), height=side(small), tiled=True, blockxsize=512, blockysize=512)
    with rasterio.open(f"{folder}/picture.tif", "w", **profile) as file:
        for row in range(0, side(small), 512):
            file.write(random.integers(0, 60_000, (512, side(small)), dtype=np.uint16), 1, window=Window(0, row, side(small), 512))
    with rasterio.open(f"{folder}/picture.tif", "r+") as file:
        file.build_overviews([2, 4, 8, 16], Resampling.nearest)


def run(folder, small):
    with rasterio.open(f"{folder}/picture.tif") as file:
        window = file.read(1, window=Window(1000, 2000, 1000, 1000))
        small_one = file.read(1, out_shape=(side(small) // 16, side(small) // 16))
        return kit.digest(window.tobytes(), small_one.tobytes())


kit.main(prepare, run)
