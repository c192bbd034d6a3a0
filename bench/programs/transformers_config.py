"""transformers loads the configuration and the tokenizer of a model's folder."""

import json
import os
import random

import kit

os.environ["HF_HUB_OFFLINE"] = "1"  # A file that is missing fails the task without a look at the network.
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig


def prepare(folder, small):
    random.seed(11)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(5_000)]
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=4_000, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(random.choices(words, k=200)) for _ in range(200)], trainer)
    files = {
        "config.json": {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "vocab_size": 4_000},
        "generation_config.json": {"max_new_tokens": 64},
        "tokenizer.json": json.loads(tokenizer.to_str()),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
    }
    for name, content in files.items():
        kit.write(f"{folder}/model/{name}", json.dumps(content).encode())


def run(folder, small):
    path = f"{folder}/model"
    loaded = [AutoConfig.from_pretrained(path), GenerationConfig.from_pretrained(path)]
    ids = AutoTokenizer.from_pretrained(path)("a mount of a bucket")["input_ids"]
    # The path is in each of them, and differs.
    contents = [{name: value for name, value in one.to_dict().items() if name != "_name_or_path"} for one in loaded]
    return kit.digest(json.dumps([contents, ids], sort_keys=True, default=str).encode())


kit.main(prepare, run)
