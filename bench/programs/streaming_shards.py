"""mosaicml-streaming reads a data set in shards, in order."""

import os
import shutil
import tempfile

import kit
import numpy as np
from streaming import MDSWriter, StreamingDataset

LENGTH = 100_000


def count(small):
    return 80 if small else 800


def prepare(folder, small):
    random = np.random.default_rng(15)
    with MDSWriter(out=folder, columns={"bytes": "bytes"}, size_limit=8 << 20) as writer:
        for _ in range(count(small)):
            writer.write({"bytes": random.bytes(LENGTH)})


def run(folder, small):
    data = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    read = kit.digest(*(data[n]["bytes"] for n in range(count(small))))
    # The library leaves locks, one for each data set.
    shutil.rmtree(os.path.join(tempfile.gettempdir(), "streaming"), ignore_errors=True)
    return read


kit.main(prepare, run, needed=lambda folder, small: count(small) * LENGTH)
