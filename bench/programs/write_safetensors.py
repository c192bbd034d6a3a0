"""safetensors writes a model."""

import kit
import numpy as np
from safetensors.numpy import load_file, save_file


def run(folder, small):
    random = np.random.default_rng(20)
    save_file({f"t{n}": random.random(1 << 18, dtype=np.float32) for n in range(4)}, f"{folder}/model.safetensors")
    return verify(folder, small)


def verify(folder, small):
    model = load_file(f"{folder}/model.safetensors")
    return kit.digest(*(model[name].tobytes() for name in sorted(model)))


kit.main(lambda folder, small: None, run, verify)
