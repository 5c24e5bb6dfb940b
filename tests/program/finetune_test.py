"""examples/finetune: a model of our own learns conversations, by all of its weights and by adapters; transformers and peft
compute its losses from what comes out."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import program_job
import torch
from program_job import REPOSITORY, SECONDS, ProgramTest, main, pretrains_small, write_headers
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-4  # "fp32 training loss" of tests/support/tolerances.h
HEADERS = 60  # that the example is tried on


class Finetune(ProgramTest):
    @classmethod
    def setUpClass(cls):
        """The example's folder `runs/finetune`, with a pretrained model."""
        cls.folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        headers = write_headers(cls.folder, HEADERS)
        subprocess.run([sys.executable, REPOSITORY / "examples/finetune/make_chats.py", cls.folder / "runs/finetune",
                        cls.folder / "include"], check=True)
        cls.train("qwen3_dense_pretrain", "pretrain", *pretrains_small(headers))

    @classmethod
    def train(cls, program, name, *arguments):
        result = subprocess.run([program_job.PROGRAMS / program, REPOSITORY / f"examples/finetune/{name}.json",
                                 "launch.device=cpu", "launch.num_threads=1", *arguments],
                                capture_output=True, text=True, timeout=SECONDS, cwd=cls.folder,
                                env={**os.environ, "XDG_CACHE_HOME": str(cls.folder / "cache")})
        if result.returncode:
            raise AssertionError(result.stderr)
        return result

    def path(self, name):
        return self.folder / "runs/finetune" / name

    def losses(self, name):
        """Of the held-out conversations, before and after."""
        lines = [json.loads(line) for line in self.path(f"{name}/metrics.jsonl").read_text().splitlines()]
        values = [line["held_out/loss"] for line in lines if "held_out/loss" in line]
        return values[0], values[-1]

    def loss_of(self, model):
        """Of what the assistant says in the held-out conversations, by transformers."""
        tokenizer = AutoTokenizer.from_pretrained(self.path("full/export" if self.path("full/export").exists() else "lora/export"))
        total, count = 0.0, 0
        for line in self.path("held_out.jsonl").read_text().splitlines():
            user, assistant = json.loads(line)["messages"]
            prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, assistant["content"] + "<|im_end|>")]
            row = torch.tensor([ids[0] + ids[1]])
            with torch.no_grad():
                logits = model(row).logits[0, len(ids[0]) - 1:-1].double()
            total += torch.nn.functional.cross_entropy(logits, row[0, len(ids[0]):], reduction="sum").item()
            count += len(ids[1])
        return total / count

    def assert_losses_of(self, model, expected):
        self.assertLess(abs(self.loss_of(model) - expected), TOLERANCE * expected)

    def test_all_weights_learn_and_transformers_computes_the_same(self):
        self.train("finetune", "full")
        before, after = self.losses("full")
        self.assertLess(after, 0.7 * before)
        self.assert_losses_of(AutoModelForCausalLM.from_pretrained(self.path("full/export")), after)

    def test_adapters_learn_and_transformers_and_peft_compute_the_same(self):
        self.train("finetune", "lora")
        before, after = self.losses("lora")
        self.assertLess(after, 0.7 * before)
        base = AutoModelForCausalLM.from_pretrained(self.path("pretrained/export"))
        self.assert_losses_of(base, before)
        self.assert_losses_of(AutoModelForCausalLM.from_pretrained(self.path("lora/export")), after)
        subprocess.run([program_job.PROGRAMS / "d9d_convert", self.path("lora/checkpoints"), self.path("lora/adapter"),
                        "--adapters", "peft"], check=True, capture_output=True, timeout=SECONDS)
        self.assert_losses_of(peft.PeftModel.from_pretrained(base, self.path("lora/adapter")), after)

    def test_a_source_that_is_not_named_or_of_no_known_family_is_refused(self):
        def refused(*arguments):
            return subprocess.run([program_job.PROGRAMS / "finetune", REPOSITORY / "examples/finetune/full.json", *arguments],
                                  capture_output=True, text=True, timeout=SECONDS, cwd=self.folder)
        self.assert_one_error(refused("trainer.model_stage_factory.source_checkpoint=null"),
                              "trainer.model_stage_factory.source_checkpoint", "config.json")
        other = self.folder / "other"
        shutil.copytree(self.path("pretrained/export"), other)
        self.addCleanup(shutil.rmtree, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
        self.assert_one_error(refused(f"trainer.model_stage_factory.source_checkpoint={other}"), "mamba", "qwen3")


if __name__ == "__main__":
    main()
