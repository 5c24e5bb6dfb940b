"""examples/finetune_classification on fortunes of three topics with words of their own."""

import json
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main
from safetensors.torch import load_file, save_file

WORDS = {"cooking": "salt oven butter onion flour", "music": "violin chord tempo choir melody",
         "sailing": "anchor harbour keel mast tide"}
TEXTS = 80  # of a topic
STEPS = 60
TOLERANCE = 1e-4  # "fp32 training loss" of tests/support/tolerances.h: gradients are summed in another order
SIZES = ["model.layer.hidden_size=32", "model.layer.intermediate_size=64", "model.layer.head_dim=8", "model.num_hidden_layers=1",
         "max_tokens=48", "dropout=0", "data.global_batch_size=16", "data.microbatch_size=8"]


def fnv1a(text):
    hash = 0xCBF29CE484222325
    for byte in text.encode():
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return hash


class FinetuneClassification(ProgramTest):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        draw = random.Random(1)
        self.fortunes = {}
        (self.folder / "fortunes").mkdir()
        for topic, words in WORDS.items():
            texts = [" ".join(draw.choices(words.split(), k=draw.randint(3, 6))) + "\n\t\t-- 100% sure" for _ in range(TEXTS)]
            self.fortunes[topic] = texts
            file = self.folder / "fortunes" / topic
            file.write_text("\n%\n".join(texts) + "\n%\n")
            file.with_suffix(".dat").write_bytes(b"\0\1index")
            file.with_suffix(".u8").symlink_to(file.name)

    def run_example(self, *arguments, name="run"):
        metrics = self.folder / name / "metrics.jsonl"
        tracker = json.dumps({"provider": "jsonl", "path": str(metrics)})
        result = subprocess.run(
            [program_job.PROGRAMS / "finetune_classification", "examples/finetune_classification/config.json",
             f"folder={self.folder / 'fortunes'}", f"trainer.logging.tracker={tracker}", "launch.device=cpu", "launch.num_threads=1",
             "trainer.logging.period_steps=1", f"trainer.schedule.total_steps={STEPS}", "trainer.evaluation.validation.period_steps=20",
             f"trainer.checkpointing.save_dir={self.folder / name / 'saves'}", "lr_scheduler.phases.0.steps=5",
             f"trainer.evaluation.validation.best.export_to={self.folder / name / 'best'}", *SIZES, *arguments],
            capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)
        return result, metrics

    def trained(self, *arguments, name="run"):
        """What it prints: texts, topics, last and best accuracy; and the lines of the log."""
        result, metrics = self.run_example(*arguments, name=name)
        self.assertEqual(result.returncode, 0, result.stderr)
        printed = re.fullmatch(r"accuracy on (\d+) unseen fortunes of (\d+) topics: (\S+), best (\S+)\n", result.stdout)
        self.assertTrue(printed, result.stdout)
        return [float(number) for number in printed.groups()], [json.loads(line) for line in metrics.read_text().splitlines()]

    def unseen(self):
        return [(text, topic) for topic, texts in enumerate(self.fortunes.values()) for text in texts if fnv1a(text) % 10 == 0]

    def test_topics_are_learned_and_transformers_says_the_same_with_the_exported_model(self):
        (number, topics, last, best), lines = self.trained(f"export_to={self.folder / 'export'}")
        self.assertEqual((number, topics), (len(self.unseen()), len(WORDS)))
        self.assertGreater(last, 0.9)
        evaluated = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
        self.assertEqual(len(evaluated), STEPS // 20)
        self.assertAlmostEqual(max(evaluated), best, delta=1e-5)
        for folder, accuracy in (("export", last), ("run/best", best)):
            model = AutoModelForSequenceClassification.from_pretrained(self.folder / folder)
            self.assertEqual(model.config.num_labels, len(WORDS))
            model.config.pad_token_id = 0  # no byte of a text
            texts = [list(text.encode())[:48] for text, _ in self.unseen()]
            ids = torch.tensor([text + [0] * (48 - len(text)) for text in texts])
            with torch.no_grad():
                scores = model(ids).logits
            right = scores.argmax(-1) == torch.tensor([topic for _, topic in self.unseen()])
            self.assertAlmostEqual(right.double().mean().item(), accuracy, delta=1e-5)
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor([topic for _, topic in self.unseen()])).item()
        at_best = next(line for line in lines if line.get("validation/accuracy") == max(evaluated))
        self.assertAlmostEqual(loss, at_best["validation/loss"], delta=TOLERANCE)

    def test_two_ranks_log_what_one_logs(self):
        settings = ("trainer.schedule.total_steps=20", "model.num_hidden_layers=2")
        expected, alone = self.trained(*settings, name="alone")
        for mesh in ("data_parallel_replicate", "data_parallel_shard", "pipeline_parallel", "tensor_parallel", "context_parallel_shard"):
            with self.subTest(mesh):
                found, together = self.trained(*settings, f"mesh.{mesh}=2", name=mesh)
                self.assertEqual(len(together), len(alone))
                for ours, one in zip(together, alone, strict=True):
                    self.assertEqual(ours.get("num_tokens"), one.get("num_tokens"))
                    for key in ("loss", "accuracy", "grad_norm", "validation/loss", "validation/accuracy"):
                        self.assertEqual(key in ours, key in one)
                        if key in one:
                            self.assertLessEqual(abs(ours[key] - one[key]), TOLERANCE * max(1, abs(one[key])), key)
                self.assertEqual(found[:2], expected[:2])

    def test_a_missing_folder_names_the_package(self):
        result, _ = self.run_example("folder=/nowhere")
        self.assert_one_error(result, "folder", "/nowhere", "Debian package 'fortunes'")

    def test_a_split_without_texts_is_refused(self):
        few = self.folder / "few"
        few.mkdir()
        for topic in WORDS:
            (few / topic).write_text("%\n%\n")
        result, _ = self.run_example(f"folder={few}")
        self.assert_one_error(result, "folder", "texts to validate with", "0 and 0")

    def test_a_published_backbone_gets_a_new_head(self):
        source = self.folder / "export"
        few = "trainer.schedule.total_steps=6"
        self.trained(f"export_to={source}", few)
        from_source = [f"trainer.model_stage_factory.source_checkpoint={source}", few, "optimizer.lr=0"]
        _, same = self.trained(*from_source, name="same")
        weights = source / "model.safetensors"
        backbone = load_file(weights)
        head = backbone.pop("score.weight")
        self.assertEqual(head.shape, (len(WORDS), 32))
        save_file(backbone, weights)
        result, _ = self.run_example(*from_source, name="refused")
        self.assert_one_error(result, "score.weight")
        _, other = self.trained(*from_source, r"trainer.model_stage_factory.source_may_lack=head\.score\.weight", name="new_head")
        self.assertNotEqual(same[0]["loss"], other[0]["loss"])


if __name__ == "__main__":
    main()
