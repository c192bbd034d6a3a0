"""torch's DataLoader reads small files by four processes."""

import os

import kit
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

LENGTH, WORKERS = 100_000, 4


def count(small):
    return 80 if small else 800


def prepare(folder, small):
    random = np.random.default_rng(14)
    for n in range(count(small)):
        kit.write(f"{folder}/{n:05}.bin", random.bytes(LENGTH))


def tensor(file):
    return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


class Files(Dataset):
    def __init__(self, folder, small):
        self.paths = [f"{folder}/{n:05}.bin" for n in range(count(small))]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, n):
        with open(self.paths[n], "rb") as file:
            return tensor(file)


def loaded(data):
    return kit.digest(*(batch.numpy().tobytes() for batch in DataLoader(data, batch_size=16, num_workers=WORKERS)))


def run(folder, small):
    return loaded(Files(folder, small))


def direct(place, small):
    from s3torchconnector import S3ClientConfig, S3MapDataset

    endpoint, bucket = place.rsplit("/", 1)
    os.environ |= {"AWS_ACCESS_KEY_ID": kit.KEY, "AWS_SECRET_ACCESS_KEY": kit.SECRET}
    config = S3ClientConfig(force_path_style=True)
    names = [f"s3://{bucket}/{n:05}.bin" for n in range(count(small))]
    options = {"region": kit.REGION, "endpoint": endpoint, "transform": tensor, "s3client_config": config}
    return loaded(S3MapDataset.from_objects(names, **options))


kit.main(prepare, run, needed=lambda folder, small: count(small) * LENGTH, direct=direct)
