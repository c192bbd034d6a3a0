"""torch writes a distributed checkpoint: `.metadata.tmp`, which it renames to `.metadata`."""

import kit
import torch
import torch.distributed.checkpoint as checkpoint


def state(fill):
    return {f"t{n}": torch.full((1 << 18,), fill(n), dtype=torch.float32) for n in range(4)}


def run(folder, small):
    checkpoint.save(state(float), checkpoint_id=f"{folder}/step-1")
    return verify(folder, small)


def verify(folder, small):
    read = state(lambda n: -1.0)
    checkpoint.load(read, checkpoint_id=f"{folder}/step-1")
    return kit.digest(*(read[name].numpy().tobytes() for name in sorted(read)))


kit.main(lambda folder, small: None, run, verify)
