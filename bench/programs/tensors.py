"""A model in the format of safetensors, for the programs that read tensors."""

import numpy as np
from safetensors.numpy import save_file

TENSORS = 60


def length(small):
    """Numbers of one tensor: 1 MiB if small, else 16 MiB."""
    return (1 << 18) if small else (4 << 20)


def prepare(folder, small):
    random = np.random.default_rng(2)
    tensors = {f"layer.{n:02}": random.random(length(small), dtype=np.float32) for n in range(TENSORS)}
    save_file(tensors, f"{folder}/model.safetensors")
