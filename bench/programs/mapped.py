"""Copies between a mapped file and an array, in one direction that the program chooses."""

import mmap

import kit
import numpy as np

STEP = 4096


def length(small):
    return (16 << 20) if small else (128 << 20)


def prepare(folder, small):
    random = np.random.default_rng(3)
    kit.write(f"{folder}/planes", random.bytes(length(small)))


def copy(folder, small, down):
    """Page by page: how the C library's memcpy goes depends on the processor and on where the buffer lies."""
    with open(f"{folder}/planes", "rb") as file:
        source = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)
    into = np.empty_like(source)
    starts = range(0, length(small), STEP)
    ends = [starts[0], starts[-1]] if down else [starts[-1], starts[0]]
    for at in ends + list(reversed(starts) if down else starts):
        into[at : at + STEP] = source[at : at + STEP]
    return kit.digest(into)


def needed(folder, small):
    return length(small)
