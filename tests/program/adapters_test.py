"""Adapters go out merged and alone, from jobs on any layout and from their checkpoints, and come back from Hugging Face peft."""

import json
import re
import subprocess
import warnings

import peft
import program_job
import torch
import transformers
from program_job import ProgramTest, main
from safetensors.torch import load_file

SCALE = 2.0
ADAPTERS = {"kind": "lora", "module_name_pattern": ".*_proj", "params": {"r": 2, "alpha": 2 * SCALE, "dropout": 0.0}}
EVERYTHING = {**ADAPTERS, "module_name_pattern": ".*_proj|.*router\\.gate|.*embed_tokens|head"}
WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "adapter_config.json")
FP32 = {"rtol": 1e-5, "atol": 1e-5}  # sums of 48 products in another order, through one layer
LAYOUTS = {
    "dense": (["mesh.data_parallel_shard=2"], ["mesh.tensor_parallel=2"], ["mesh.pipeline_parallel=2"],
              ["mesh.data_parallel_shard=2", "mesh.tensor_parallel=2"]),
    "tied": (["mesh.data_parallel_shard=2"], ["mesh.tensor_parallel=2"], ["mesh.pipeline_parallel=2"]),
    "moe": (["mesh.data_parallel_shard=2", "mesh.expert_parallel=2"], ["mesh.pipeline_parallel=2"],
            ["mesh.pipeline_parallel=2", "mesh.data_parallel_shard=2", "mesh.expert_parallel=2"]),
}


class Adapters(ProgramTest):
    def job(self, model="dense"):
        """model: one of LAYOUTS. The head of the tied one is dense's embedding."""
        job = super().job("moe" if model == "moe" else "dense")
        job.config["model_provider"]["model"]["tie_word_embeddings"] = model == "tied"
        return job

    def adapted(self, model="dense", adapters=ADAPTERS):
        """A job of two layers that trains adapters and saves its last step."""
        job = self.job(model)
        job.saves = job.folder / "checkpoints"
        job.config["data"]["microbatch_size"] = 2
        job.config["model_provider"]["adapters"] = adapters
        job.config["model_provider"]["model"]["num_hidden_layers"] = 2
        job.config["trainer"]["checkpointing"] = {"save_dir": str(job.saves), "period_steps": "last_step"}
        job.config["trainer"]["model_stage_factory"] = {}
        return job

    def run_job(self, job, *arguments):
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout + result.stderr

    def convert(self, *arguments, code=0):
        done = subprocess.run([program_job.PROGRAMS / "d9d_convert", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr

    def content(self, folder):
        return {name: (folder / name).read_bytes() for name in WEIGHTS if (folder / name).exists()}

    def unchanged(self, model, source, *arguments):
        """What a job that begins with these weights and does not change them exports."""
        again = self.adapted(model, EVERYTHING)
        again.config["optimizer"]["lr"] = 0.0
        again.config["optimizer"]["weight_decay"] = 0.0
        again.config["trainer"]["schedule"]["total_steps"] = 2
        again.config["trainer"]["model_stage_factory"] = source
        log = self.run_job(again, "trainer.checkpointing.period_steps=disable", *arguments)
        return again.export, log

    def test_every_layout_writes_the_bytes_that_its_checkpoint_gives(self):
        for model, layouts in LAYOUTS.items():
            job = self.adapted(model, EVERYTHING)
            self.run_job(job)
            for adapters in ("merged", "peft"):
                expected = job.folder / adapters
                self.convert(job.saves, expected, "--adapters", adapters)
                self.assertEqual(len(self.content(expected)), {"merged": 1, "peft": 2}[adapters])
                for layout in ([], *layouts):
                    with self.subTest(model=model, adapters=adapters, layout=layout):
                        exported, _ = self.unchanged(model, {"source_checkpoint": str(job.saves)}, *layout,
                                                     f"model_provider.export.adapters={adapters}")
                        self.assertEqual(self.content(exported), self.content(expected))

    def test_patterns_of_the_pages_match_the_models(self):
        """Each trains something of both models."""
        expression = re.compile(r'module_name_pattern"?[^"]{1,4}"((?:[^"\\\\]|\\\\.)*)"')
        found = 0
        for page in ("docs/adapters.md", "docs/fine_tune.md", "examples/finetune/lora.json"):
            for pattern in {json.loads(f'"{text}"') for text in expression.findall((program_job.REPOSITORY / page).read_text())}:
                kind = {"kind": "full_tune"} if pattern.endswith("norm") else {"kind": "lora", "params": ADAPTERS["params"]}
                for model in ("dense", "moe"):
                    with self.subTest(page=page, pattern=pattern, model=model):
                        job = self.adapted(model, {**kind, "module_name_pattern": pattern})
                        self.run_job(job, "trainer.schedule.total_steps=2")
                        found += 1
        self.assertGreaterEqual(found, 8)

    def assert_merged(self, merged, base, adapters):
        """The dense weights are those of the base and the product of the adapters, those of a tied base its embedding's."""
        weights, original = load_file(merged / "model.safetensors"), load_file(base / "model.safetensors")
        tensors = load_file(adapters / "adapter_model.safetensors")
        original.setdefault("lm_head.weight", original["model.embed_tokens.weight"])
        self.assertEqual(weights.keys(), original.keys())
        for name, weight in weights.items():
            module = f"base_model.model.{name.removesuffix('.weight')}"
            expected = original[name].clone()
            if f"{module}.lora_A.weight" in tensors:
                expected += SCALE * (tensors.pop(f"{module}.lora_B.weight") @ tensors.pop(f"{module}.lora_A.weight"))
            if f"{module}.lora_embedding_A" in tensors:
                expected += SCALE * (tensors.pop(f"{module}.lora_embedding_B") @ tensors.pop(f"{module}.lora_embedding_A")).T
            torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-7)
        self.assertFalse(tensors)

    def base(self, model):
        """The export of a job without adapters, which a job with them begins with."""
        job = self.job(model)
        job.config["model_provider"]["model"]["num_hidden_layers"] = 2
        self.run_job(job)
        return job.export

    def test_transformers_and_peft_load_what_a_fine_tune_of_an_export_writes(self):
        for model in LAYOUTS:
            with self.subTest(model):
                base = self.base(model)
                job = self.adapted(model, EVERYTHING)
                job.config["trainer"]["model_stage_factory"] = {"source_checkpoint": str(base),
                                                                "checkpoint_only_trainable_parameters": True}
                self.run_job(job)
                adapters = job.folder / "adapters"
                self.convert(job.saves, adapters, "--adapters", "peft")  # from adapters alone
                self.assertIn("frozen weights", self.convert(job.saves, job.folder / "merged", code=2))
                if model != "moe":
                    self.assert_merged(job.export, base, adapters)
                config = json.loads((adapters / "adapter_config.json").read_text())
                self.assertEqual(config["base_model_name_or_path"], str(base))
                ids = torch.arange(24).unsqueeze(0)
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.filterwarnings("error", message=".*missing adapter keys.*")
                    merged = transformers.AutoModelForCausalLM.from_pretrained(job.export).eval()(ids).logits
                    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(adapters).eval()(ids).logits
                    plain = transformers.AutoModelForCausalLM.from_pretrained(base).eval()(ids).logits
                torch.testing.assert_close(adapted, merged, **FP32)
                self.assertGreater((plain - merged).abs().max().item(), 1e-3)
                for layout in ([], LAYOUTS[model][-1]):  # training goes on from the adapters
                    exported, _ = self.unchanged(model, {"source_checkpoint": str(base), "source_adapters": str(adapters)},
                                                 *layout)
                    self.assertEqual(self.content(exported), self.content(job.export))

    def perplexity(self, job, base, **of_model):
        config = {"launch": program_job.LAUNCH, "mesh": {},
                  "data": job.config["data"] | {"num_workers": 0},
                  "model_provider": {"model": "from_checkpoint", "checkpointing": False} | of_model.pop("provider", {}),
                  "inference": {"model_stage_factory": {"source_checkpoint": str(base)} | of_model,
                                "determinism": {"base_seed": 0}, "gc": {"period_steps": "disable"},
                                "checkpointing": {"save_dir": str(job.folder / "positions"), "period_steps": "disable"}}}
        path = job.folder / "perplexity.json"
        path.write_text(json.dumps(config))
        done = subprocess.run([program_job.PROGRAMS / "qwen3_dense_perplexity", path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return float(done.stdout.split()[1])

    def test_evaluation_takes_adapters_and_the_merged_model_alike(self):
        base = self.base("dense")
        job = self.adapted()
        job.config["trainer"]["model_stage_factory"] = {"source_checkpoint": str(base)}
        job.config["optimizer"]["lr"] = 0.01
        self.run_job(job)
        adapters = job.folder / "adapters"
        self.convert(job.saves, adapters, "--adapters", "peft")
        merged = self.perplexity(job, job.export)
        adapted = self.perplexity(job, base, source_adapters=str(adapters), provider={"adapters": ADAPTERS})
        self.assertAlmostEqual(merged, adapted, delta=1e-4 * merged)
        self.assertLess(merged, 0.99 * self.perplexity(job, base))

    def test_averages_of_adapters_are_what_is_merged(self):
        base = self.base("dense")
        job = self.adapted()
        job.config["trainer"]["model_stage_factory"] = {"source_checkpoint": str(base)}
        job.config["trainer"]["ema"] = {"decay": 0.5, "export": "averaged"}
        self.run_job(job, "mesh.data_parallel_shard=2")
        for weights in ("averaged", "trained"):
            self.convert(job.saves, job.folder / weights, "--adapters=peft", "--weights", weights)
        self.assert_merged(job.export, base, job.folder / "averaged")
        self.assertNotEqual(self.content(job.folder / "averaged"), self.content(job.folder / "trained"))

    def test_masters_are_rounded_to_the_dtype_of_the_model(self):
        job = self.adapted()
        job.config["model_provider"]["dtype"] = "bfloat16"
        job.config["trainer"]["model_stage_factory"] = {"master_dtype": "float32"}
        for adapters in ("merged", "peft"):
            for dtype in (None, "float32"):
                self.run_job(job, f"model_provider.export.adapters={adapters}",
                             f"model_provider.export.dtype={json.dumps(dtype)}", "trainer.checkpointing.period_steps=disable")
                for name, tensor in load_file(job.export / f"{'model' if adapters == 'merged' else 'adapter_model'}.safetensors").items():
                    self.assertEqual(tensor.dtype, torch.float32 if dtype else torch.bfloat16, name)

    def test_what_a_reader_does_not_take_is_said(self):
        norm = {"kind": "full_tune", "module_name_pattern": "model\\.norm"}
        job = self.adapted(adapters={"kind": "stack", "methods": [ADAPTERS, norm]})
        log = self.run_job(job, "model_provider.export.adapters=peft")
        self.assertIn("vLLM refuses adapters with modules_to_save, here model.norm", log)
        other = {**ADAPTERS, "module_name_pattern": ".*o_proj", "params": {"r": 3, "alpha": 6, "dropout": 0}}
        job = self.adapted(adapters={"kind": "stack", "methods": [
            {**ADAPTERS, "module_name_pattern": ".*[qkv]_proj"}, other]})
        self.assert_one_error(job.run("model_provider.export.adapters=peft"), "one r, alpha and use_rslora", "r = 3")

    def test_adapters_that_are_not_the_jobs_are_refused(self):
        job = self.adapted()
        self.run_job(job, "model_provider.export.adapters=peft")
        source = f"trainer.model_stage_factory.source_adapters={job.export}"
        for adapters, words in (
                ({**ADAPTERS, "params": {"r": 3, "alpha": 6, "dropout": 0}}, ("rank 3", "rank 2", "self_attn.q_proj")),
                ({**ADAPTERS, "params": {"r": 2, "alpha": 6, "dropout": 0}}, ("scale 3", "scale 2")),
                ({**ADAPTERS, "module_name_pattern": ".*[qk]_proj"}, ("Widen module_name_pattern", "mlp.down_proj")),
                (None, ("expected model_provider.adapters",))):
            other = self.adapted(adapters=adapters)
            self.assert_one_error(other.run(source, "mesh.pipeline_parallel=2"), *words)


if __name__ == "__main__":
    main()
