"""reference_example_oracle.py FOLDER: the data flow of d9d 0.16's example with datasets and tokenizers.

Writes a dataset and a tokenizer and prints the microbatches of each data-parallel rank as JSON.
"""
import json
import random
import sys

from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

folder = sys.argv[1]
USE_SAMPLES, SEED, BUFFER, GLOBAL_BATCH, MICROBATCH = 150, 42, 40, 8, 4

words = random.Random(1)
vocabulary = ["".join(words.choice("abcdeéж ") for _ in range(words.randrange(1, 9))) for _ in range(200)]
texts = [" ".join(words.choice(vocabulary) for _ in range(0 if i % 37 == 0 else words.choice([1, 2, 5, 20, 40]))) for i in range(200)]
Dataset.from_dict({"body": texts, "id": list(range(200))}).to_parquet(folder + "/data/train-00000-of-00001.parquet")

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.save(folder + "/tokenizer.json")

rows = load_dataset(folder, split="train", cache_dir=folder + "/cache").take(USE_SAMPLES).shuffle(SEED)
rows = [tokenizer.encode(text).ids for text in rows["body"]]

# The buffer-sorted order, implemented from its rules.
draws = random.Random(SEED ^ 0x105E7)
order = []
for first in range(0, len(rows), BUFFER):
    ids = range(first, min(first + BUFFER, len(rows)))
    ids = [i for _, _, i in sorted((len(rows[i]), draws.random(), i) for i in ids)]
    packs = [ids[i:i + GLOBAL_BATCH] for i in range(0, len(ids), GLOBAL_BATCH)]
    draws.shuffle(packs)
    for pack in packs:
        draws.shuffle(pack)
        order += pack


def collate(samples):
    def pad(items, value):  # as pad_sequence(batch_first=True)
        longest = max(len(item) for item in items)
        return [[*item, *[value] * (longest - len(item))] for item in items]

    return {"input_ids": pad([s[:-1] for s in samples], 0), "labels": pad([s[1:] for s in samples], -100),
            "position_ids": pad([range(max(len(s) - 1, 0)) for s in samples], 0)}


ranks = {}
for size in (1, 2):
    num_samples = len(order) // GLOBAL_BATCH * GLOBAL_BATCH
    shards = [order[rank:num_samples:size] for rank in range(size)]
    ranks[str(size)] = [[collate([rows[i] for i in shard[at:at + MICROBATCH]]) for at in range(0, len(shard), MICROBATCH)]
                        for shard in shards]
print("RESULT " + json.dumps({"ranks": ranks, "use_samples": USE_SAMPLES, "seed": SEED, "buffer": BUFFER,
                              "global_batch": GLOBAL_BATCH, "microbatch": MICROBATCH,
                              "vocabulary": tokenizer.get_vocab_size()}))
