"""safetensors loads a whole model."""

import os

import kit
import tensors
from safetensors.numpy import load_file


def run(folder, small):
    model = load_file(f"{folder}/model.safetensors")
    return kit.digest(*(model[name].tobytes() for name in sorted(model)))


kit.main(tensors.prepare, run, needed=lambda folder, small: os.path.getsize(f"{folder}/model.safetensors"))
