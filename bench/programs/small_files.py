"""Eight threads read many small files, each once, as a loader of pictures does."""

import os
from concurrent.futures import ThreadPoolExecutor

import kit
import numpy as np

LENGTH = 100_000


def count(small):
    return 200 if small else 1600


def name(n):
    return f"{n % 16:02}/{n:05}.jpg"


def prepare(folder, small):
    random = np.random.default_rng(6)
    for n in range(count(small)):
        kit.write(f"{folder}/{name(n)}", random.bytes(LENGTH))


def run(folder, small):
    def read(n):
        with open(f"{folder}/{name(n)}", "rb") as file:
            return kit.digest(file.read()).encode()

    with ThreadPoolExecutor(8) as pool:
        return kit.digest(*pool.map(read, range(count(small))))


def direct(place, small):
    store = kit.obstore_s3(place)

    def read(n):
        return kit.digest(store.get(name(n)).bytes()).encode()

    with ThreadPoolExecutor(8) as pool:
        return kit.digest(*pool.map(read, range(count(small))))


kit.main(prepare, run, needed=lambda folder, small: count(small) * LENGTH, direct=direct)
