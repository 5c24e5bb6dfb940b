"""examples/dpo: a model of our own learns preferences, by all of its weights and by adapters; transformers computes its rewards
from what comes out."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import program_job
import pyarrow
import pyarrow.parquet
import torch
from program_job import REPOSITORY, SECONDS, ProgramTest, main, pretrains_small, write_headers
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-3  # of rewards in fp32: beta times differences of sums of log-probabilities
HEADERS = 60  # that the example is tried on
BETA = 0.1


class Dpo(ProgramTest):
    @classmethod
    def setUpClass(cls):
        """The folder `runs/finetune` of examples/finetune, with a fine-tuned model, and pairs."""
        cls.folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        headers = write_headers(cls.folder, HEADERS)
        for script, *more in (("finetune/make_chats.py", cls.folder / "include"), ("dpo/make_pairs.py",)):
            subprocess.run([sys.executable, REPOSITORY / "examples" / script, cls.folder / "runs/finetune", *more], check=True)
        cls.train("qwen3_dense_pretrain", "finetune/pretrain", *pretrains_small(headers))
        cls.train("finetune", "finetune/full")

    @classmethod
    def run_program(cls, program, name, *arguments):
        return subprocess.run([program_job.PROGRAMS / program, REPOSITORY / f"examples/{name}.json",
                               "launch.device=cpu", "launch.num_threads=1", *arguments],
                              capture_output=True, text=True, timeout=SECONDS, cwd=cls.folder,
                              env={**os.environ, "XDG_CACHE_HOME": str(cls.folder / "cache")})

    @classmethod
    def train(cls, *arguments):
        result = cls.run_program(*arguments)
        if result.returncode:
            raise AssertionError(result.stderr)
        return result

    def held_out(self, name):
        """Values on the held-out pairs, of each evaluation."""
        lines = [json.loads(line) for line in (self.folder / f"runs/dpo/{name}/metrics.jsonl").read_text().splitlines()]
        return [{key.removeprefix("held_out/"): value for key, value in line.items() if key.startswith("held_out/")}
                for line in self.joined(lines)]

    @staticmethod
    def joined(lines):
        """One entry for each step that has evaluations."""
        steps = {}
        for line in lines:
            if any(key.startswith("held_out/") for key in line):
                steps.setdefault(line["step"], {}).update(line)
        return [steps[step] for step in sorted(steps)]

    def log_probs(self, folder):
        """Of both answers of each held-out pair, [pairs, 2], by transformers: tokens as trl takes them."""
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "runs/finetune/full/export")
        model = AutoModelForCausalLM.from_pretrained(self.folder / folder)
        def ids(messages, **options):
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            return tokenizer(text, add_special_tokens=False)["input_ids"]
        sums = []
        for line in (self.folder / "runs/finetune/held_out_pairs.jsonl").read_text().splitlines():
            pair = json.loads(line)
            prompt = ids(pair["prompt"], add_generation_prompt=True)
            for answer in (pair["chosen"], pair["rejected"]):
                whole = ids(pair["prompt"] + answer)
                self.assertEqual(whole[:len(prompt)], prompt)
                with torch.no_grad():
                    each = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
                targets = torch.tensor(whole[len(prompt):])
                sums.append(each[len(prompt) - 1:-1].gather(1, targets.unsqueeze(1)).sum())
        return torch.stack(sums).view(-1, 2)

    def assert_prefers(self, name):
        first, *_, last = self.held_out(name)
        self.assertLess(abs(first["loss"] - torch.tensor(2.0).log().item()), TOLERANCE)
        self.assertLess(abs(first["rewards/margins"]), TOLERANCE)
        self.assertEqual(last["rewards/accuracies"], 1.0)
        rewards = BETA * (self.log_probs(f"runs/dpo/{name}/export") - self.log_probs("runs/finetune/full/export"))
        self.assertTrue((rewards[:, 0] > rewards[:, 1]).all())
        chosen, rejected = rewards.mean(0).tolist()
        for key, value in (("rewards/chosen", chosen), ("rewards/rejected", rejected), ("rewards/margins", chosen - rejected)):
            self.assertLess(abs(last[key] - value), TOLERANCE * max(1.0, abs(value)), key)

    def test_adapters_learn_preferences_against_the_model_without_them(self):
        self.assertIn("reference: the model without its adapters", self.train("dpo", "dpo/lora").stderr)
        self.assert_prefers("lora")

    def test_all_weights_learn_preferences_against_a_frozen_copy(self):
        self.assertIn("reference: a frozen copy", self.train("dpo", "dpo/full").stderr)
        self.assert_prefers("full")

    def test_adapters_that_are_trained_on_begin_as_their_reference(self):
        short = ("trainer.schedule.total_steps=2", "lr_scheduler.warmup_steps=0", "trainer.checkpointing.period_steps=disable")
        self.train("dpo", "dpo/lora", *short, "model_provider.export.adapters=peft", "export_to=runs/adapters",
                   "trainer.logging.tracker.path=runs/adapters.jsonl", "sample=null")
        result = self.train("dpo", "dpo/lora", *short, "trainer.model_stage_factory.source_adapters=runs/adapters",
                            "trainer.logging.tracker.path=runs/dpo/again/metrics.jsonl", "export_to=runs/dpo/again/export")
        self.assertIn("reference: a frozen copy", result.stderr)
        first, last = self.held_out("again")
        self.assertLess(abs(first["rewards/margins"]), TOLERANCE)
        self.assertGreater(last["rewards/margins"], TOLERANCE)

    def test_pairs_of_parquet_and_of_whole_conversations_are_the_same_data(self):
        def losses(*arguments):
            name = f"runs/{self._testMethodName}"
            shutil.rmtree(self.folder / name, ignore_errors=True)
            self.train("dpo", "dpo/lora", "trainer.schedule.total_steps=4", "lr_scheduler.warmup_steps=0",
                       "trainer.logging.period_steps=1", "trainer.evaluation={}", "evaluation_data={}",
                       "trainer.checkpointing.period_steps=disable",
                       f"trainer.logging.tracker.path={name}/metrics.jsonl", f"export_to={name}/export", *arguments)
            return [json.loads(line)["loss"] for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        expected = losses()
        pairs = [json.loads(line) for line in (self.folder / "runs/finetune/pairs.jsonl").read_text().splitlines()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pairs), self.folder / "pairs.parquet")
        self.assertEqual(losses("data.kind=parquet", 'data.paths=["pairs.parquet"]'), expected)
        whole = [{key: pair["prompt"] + pair[key] for key in ("chosen", "rejected")} for pair in pairs]
        (self.folder / "whole.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in whole))
        self.assertEqual(losses('data.paths=["whole.jsonl"]', "data.pairs={}"), expected)

    def test_bad_pairs_are_refused_by_line_or_left_out(self):
        lines = (self.folder / "runs/finetune/pairs.jsonl").read_text().splitlines()[:9]
        pair = json.loads(lines[0])
        (self.folder / "bad.jsonl").write_text("\n".join([*lines, json.dumps({**pair, "rejected": pair["chosen"]})]) + "\n")
        arguments = ("dpo", "dpo/lora", 'data.paths=["bad.jsonl"]', "export_to=runs/bad/export",
                     "trainer.schedule.total_steps=1", "lr_scheduler.warmup_steps=0",
                     "trainer.checkpointing.save_dir=runs/bad/saves", "trainer.logging.tracker.path=runs/bad/metrics.jsonl")
        self.assert_one_error(self.run_program(*arguments), "a pair of equal answers", "bad.jsonl", "bad_rows")
        self.assertIn("skipped 1 bad rows", self.train(*arguments, "data.bad_rows=skip").stderr)


if __name__ == "__main__":
    main()
