"""webdataset reads two shards, sample by sample."""

import io
import os
import tarfile

import kit
import numpy as np
import webdataset as wds

LENGTH = 50_000


def samples(small):
    return 100 if small else 1000


def prepare(folder, small):
    random = np.random.default_rng(7)
    for shard in range(2):
        with tarfile.open(f"{folder}/shard-{shard:03}.tar", "w") as tar:
            for n in range(samples(small)):
                for ending, data in (("cls", str(n % 10).encode()), ("bin", random.bytes(LENGTH))):
                    entry = tarfile.TarInfo(f"{shard:03}{n:06}.{ending}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def shards(folder):
    return [f"{folder}/shard-{shard:03}.tar" for shard in range(2)]


def run(folder, small):
    data = wds.WebDataset(shards(folder), shardshuffle=False)
    return kit.digest(*(part for sample in data for part in (sample["cls"], sample["bin"])))


kit.main(prepare, run, needed=lambda folder, small: sum(map(os.path.getsize, shards(folder))))
