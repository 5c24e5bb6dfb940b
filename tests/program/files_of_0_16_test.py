"""The job files of d9d 0.16 run as they are, but for sizes, on the 8 ranks that they ask for."""

import json
import math
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main

FILES = REPOSITORY / "tests/loop/config/files_of_0_16"
VOCABULARY = 400
# All that differs: sizes, so that a CPU computes them, and where the program runs.
MODEL = {"hidden_size": 32, "intermediate_size": 16, "num_experts": 4, "experts_top_k": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8}
SIZES = [f"model_provider.model.model.layer.{name}={value}" for name, value in MODEL.items()] + [
    f"model_provider.model.model.split_vocab_size.regular={VOCABULARY}"]
HERE = ["launch.device=cpu", "launch.num_threads=1"]
# Aim is a stub here (tests/tracker/helper/stub), whose runs are files: CI does not install the 1.1 GB of the SDKs.
AIM = [f"trainer.logging.tracker.python={REPOSITORY}/.venv/bin/python"]
STUB = REPOSITORY / "tests/tracker/helper/stub"
BATCHES = ["global_batch_size=16", "microbatch_size=2"]
TEXTS = 160


class FilesOf016(ProgramTest):
    def setUp(self):
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        self.here, self.data = folder / "example/qwen3_moe", folder / "example_data"  # ../../example_data in the files
        self.here.mkdir(parents=True)
        draw = random.Random(1)
        words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(60)]
        self.texts = [" ".join(draw.choices(words, k=draw.randint(4, 20))) for _ in range(TEXTS)]
        Dataset.from_dict({"text": self.texts}).to_parquet(self.data / "dataset/data/train-00000-of-00001.parquet")
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.train_from_iterator(self.texts, trainers.BpeTrainer(
            vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        self.tokenizer.save(str(self.data / "tokenizer.json"))

    def run_file(self, program, file, *arguments):
        return subprocess.run([program_job.PROGRAMS / program, FILES / file, *arguments, *HERE], capture_output=True, text=True,
                              timeout=3 * SECONDS, cwd=self.here, env={"XDG_CACHE_HOME": str(self.data), "PATH": "", "PYTHONPATH": str(STUB)})

    def test_pretraining_and_the_perplexity_of_what_it_exported(self):
        trained = self.run_file("qwen3_moe_pretrain", "pretrain.json", *SIZES, *AIM, "trainer.logging.period_steps=1",
                                *(f"trainer.batching.{size}" for size in BATCHES))
        self.assertEqual(trained.returncode, 0, trained.stderr)
        run, = (self.data / "logs").glob("*.jsonl")
        calls = [json.loads(line) for line in run.read_text().splitlines()]
        losses = [value for verb, *rest in calls if verb == "track" and rest[1:3] == ["loss", {"stage": "train"}] for value in rest[3:]]
        self.assertEqual(len(losses), TEXTS // 16)  # one pass
        self.assertAlmostEqual(losses[0], math.log(VOCABULARY + 26), delta=0.5)
        self.assertLess(losses[-1], losses[0])
        self.assertIn(["set", "status", "completed"], calls)
        self.assertIn("8 x cpu", trained.stderr)

        export = self.data / "model_export"
        printed = self.run_file("qwen3_moe_perplexity", "calculate_perplexity.json", *SIZES,
                                f"inference.model_stage_factory.source_checkpoint={export}",
                                "model_provider.dtype=float32",  # as the oracle computes with these bfloat16 weights
                                *(f"inference.batching.{size}" for size in BATCHES))
        self.assertEqual(printed.returncode, 0, printed.stderr)
        perplexity = re.search(r"perplexity (\S+) .* of (\d+) tokens", printed.stdout)
        model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
        total, count = 0.0, 0
        with torch.no_grad():
            for text in self.texts:
                ids = torch.tensor([self.tokenizer.encode(text).ids])
                total += torch.nn.functional.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="sum").item()
                count += ids.shape[1] - 1
        self.assertEqual(int(perplexity[2]), count)
        self.assertAlmostEqual(float(perplexity[1]), math.exp(total / count), delta=1e-3 * math.exp(total / count))

    def test_a_missing_sdk_is_named_with_its_remedy(self):
        refused = self.run_file("qwen3_moe_pretrain", "pretrain.json", *SIZES, "trainer.logging.tracker.python=/no/python")
        self.assert_one_error(refused, "'aim'", "/no/python", "make trackers")


if __name__ == "__main__":
    main()
