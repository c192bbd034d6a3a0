"""tokenizers loads a tokenizer and reads the configuration beside it."""

import json
import random

import kit
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def prepare(folder, small):
    random.seed(10)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(20_000)]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=8_000, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(random.choices(words, k=200)) for _ in range(500)], trainer)
    tokenizer.save(f"{folder}/tokenizer.json")
    kit.write(f"{folder}/config.json", json.dumps({"hidden_size": 4096, "layers": list(range(32))}).encode())


def run(folder, small):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    with open(f"{folder}/config.json") as file:
        config = json.load(file)
    return kit.digest(repr(tokenizer.encode("a mount of a bucket").ids).encode(), repr(config).encode())


kit.main(prepare, run)
