"""numpy reads a model by memmap, as the readers of gguf do: the head, then each tensor once in its order."""

import kit
import numpy as np

TENSORS, HEAD = 32, 32 << 10


def length(small):
    return (1 << 20) if small else (8 << 20)


def prepare(folder, small):
    random = np.random.default_rng(11)
    kit.write(f"{folder}/model.gguf", random.bytes(HEAD), *(random.bytes(length(small)) for _ in range(TENSORS)))


def run(folder, small):
    whole = np.memmap(f"{folder}/model.gguf", mode="r")
    parts = [whole[:HEAD]] + [whole[HEAD + n * length(small) : HEAD + (n + 1) * length(small)] for n in range(TENSORS)]
    return kit.digest(*parts)


kit.main(prepare, run, needed=lambda folder, small: HEAD + TENSORS * length(small))
