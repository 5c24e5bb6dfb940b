"""Runs of the pretraining examples that succeed."""

import importlib.util
import json
import math
import os
import pty
import re
import struct
import subprocess
import unittest

from program_job import DEVICE, SECONDS, ProgramTest, main, most_ranks


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"this Python has no {package}")


class Run(ProgramTest):
    def test_help_and_schema_need_no_configuration(self):
        job = self.job()
        usage = job.run(command=[str(job.program), "--help"])
        self.assertEqual((usage.returncode, usage.stderr), (0, ""))
        self.assertIn("trainer", usage.stdout)
        schema = job.run(command=[str(job.program), "--schema"])
        self.assertEqual((schema.returncode, schema.stderr), (0, ""))
        self.assertIn("trainer", json.loads(schema.stdout)["properties"])

    def test_threads_of_openmp_spin_for_a_while_unless_the_user_says_how_long(self):
        """libgomp prints what it read each time that it is loaded: a second time where the program started itself anew."""
        program = str(self.job().program)
        variables = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
        clean = {name: value for name, value in os.environ.items() if name not in variables}

        def spin_counts(**environment):
            result = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=SECONDS,
                                    env={**clean, "OMP_DISPLAY_ENV": "verbose", **environment})
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout.count("Usage:"), 1)
            return re.findall(r"GOMP_SPINCOUNT = '(\d+)'", result.stderr)

        self.assertEqual(spin_counts(OMP_NUM_THREADS="2"), ["300000", "10000"])
        self.assertEqual(spin_counts(OMP_NUM_THREADS="1"), ["300000"])
        self.assertEqual(spin_counts(OMP_NUM_THREADS="2", GOMP_SPINCOUNT="7"), ["7"])
        self.assertEqual(len(spin_counts(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="active")), 1)

    @unittest.skipUnless(DEVICE == "cuda", "only a program that uses a GPU opens the library with NVTX")
    def test_a_tool_that_reads_nvtx_sees_the_ranges_of_a_step(self):
        job = self.job()
        seen = job.folder / "ranges.txt"
        result = job.run(environment={"NVTX_INJECTION64_PATH": str(job.program.parent / "libd9d_nvtx_tool.so"),
                                      "D9D_NVTX_FILE": str(seen)})
        self.assertEqual(result.returncode, 0, result.stderr)
        ranges = seen.read_text().splitlines()
        steps = [name for name in ranges if re.fullmatch(r"step \d+", name)]
        self.assertEqual(steps, [f"step {index}" for index in range(len(job.steps()))])
        for name in ("  data", "  forward and backward", "  gradients and optimizer"):
            self.assertEqual(ranges.count(name), len(steps), ranges)

    @needs("tensorboard")
    def test_every_step_is_logged_alike_by_both_trackers(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for model in ("dense", "moe"):
            with self.subTest(model):
                job = self.job(model)
                result = job.run()
                self.assertEqual(result.returncode, 0, result.stderr)
                steps = job.steps()
                self.assertEqual([step["step"] for step in steps], [0, 1, 2, 3, 4])
                names = ["loss", "grad_norm", "lr", "num_tokens", "step_seconds", "data_seconds", "tokens_per_second",
                         "host_bytes", "skipped_steps"]
                for step in steps:
                    self.assertEqual([name for name in names if name not in step], [])
                    self.assertEqual(step["num_tokens"], 8 * 32)
                self.assertLess(steps[-1]["loss"], steps[0]["loss"])
                events = EventAccumulator(str(job.tensorboard)).Reload()
                for tag in events.Tags()["scalars"]:
                    name = next(n for n in steps[0] if n == tag or tag.startswith(n) or tag.endswith(n))
                    for event in events.Scalars(tag):
                        self.assertEqual(event.value, struct.unpack("f", struct.pack("f", steps[event.step][name]))[0])

    def test_losses_depend_on_the_seed_and_on_nothing_else(self):
        for model in ("dense", "moe"):
            with self.subTest(model):
                losses = self.trained(model)
                self.assertEqual(self.trained(model), losses, "a second run")
                self.assertEqual(self.trained(model, data={"num_workers": 2}), losses, "two workers")
                self.assertEqual(self.trained(model, model_provider={"checkpointing": True}), losses, "checkpointing")
                self.assertNotEqual(self.trained(model, ["trainer.determinism.base_seed=7"]), losses, "another seed")

    def test_deterministic_jobs_repeat_themselves_bit_by_bit(self):
        for model in ("dense", "moe"):
            for dtype in ("bfloat16", "float32"):
                with self.subTest(model=model, dtype=dtype):
                    runs = []
                    for _ in range(2):
                        job = self.job(model)
                        job.config["launch"]["deterministic"] = True
                        job.config["data"]["sequence_length"] = 512  # more than one tile of an attention kernel
                        job.config["model_provider"]["dtype"] = dtype
                        result = job.run()
                        self.assertEqual(result.returncode, 0, result.stderr)
                        runs.append((job.losses(), (job.export / "model.safetensors").read_bytes()))
                    self.assertEqual(runs[0][0], runs[1][0])
                    self.assertTrue(runs[0][1] == runs[1][1], "other weights")

    def test_graphs_of_microbatches_change_no_bit(self):
        graphs = "trainer.cuda_graph={}"
        if DEVICE == "cpu":
            job = self.job()
            self.assert_refused(job, job.run(graphs), "trainer.cuda_graph", "got cpu")
            return
        # Products of experts in float32 wait for their counts, and cannot be captured.
        for model, dtype in (("dense", "bfloat16"), ("dense", "float32"), ("moe", "bfloat16")):
            with self.subTest(model=model, dtype=dtype):
                settings = {"launch": {"deterministic": True}, "data": {"microbatch_size": 2},
                            "model_provider": {"dtype": dtype}}
                self.assertEqual(self.trained(model, [graphs], **settings), self.trained(model, **settings))

    @unittest.skipUnless(DEVICE == "cuda", "on CPUs the key has no effect")
    def test_ranks_that_share_a_gpu_train_as_one(self):
        """Their slices travel by copies, and their streams wait for each other."""
        layout = ("launch.ranks_per_gpu=2", "mesh.data_parallel_shard=2", "model_provider.fsdp.gather=copy_engine",
                  "model_provider.fsdp.reduce=copy_engine")
        expected = self.trained(model_provider={"dtype": "float64"})
        for ours, theirs in zip(self.trained(arguments=layout, model_provider={"dtype": "float64"}), expected, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-9 * theirs)

    def test_losses_of_one_microbatch_are_those_of_two(self):
        for two, one in zip(self.trained(), self.trained(data={"microbatch_size": 8}), strict=True):
            self.assertAlmostEqual(two, one, delta=2e-6)

    def test_bfloat16_trains(self):
        losses = self.trained(arguments=["model_provider.dtype=bfloat16", "trainer.schedule.total_steps=20"])
        self.assertLess(losses[-1], losses[0])

    def test_a_source_checkpoint_continues_at_the_loss_of_its_export(self):
        job = self.job()
        frozen = ["optimizer.lr=0.0", "data.shuffle=false"]
        self.assertEqual(job.run(*frozen).returncode, 0)
        again = self.trained(arguments=[f"trainer.model_stage_factory.source_checkpoint={job.export}",
                                        "trainer.determinism.base_seed=99", *frozen])
        self.assertEqual(again, job.losses())

    def test_a_job_begins_with_weights_and_sizes_of_a_checkpoint_of_another_job(self):
        first, whole = self.job(), ["trainer.schedule.total_steps=3", "data.shuffle=false", "optimizer.lr=0.0"]
        saves = first.folder / "saves"
        first.config["trainer"]["checkpointing"] = {"save_dir": str(saves), "period_steps": "last_step"}
        result = first.run(*whole)
        self.assertEqual(result.returncode, 0, result.stderr)
        for source in (saves, saves / "save-3"):
            from_source = [*whole, f"trainer.model_stage_factory.source_checkpoint={source}",
                           "trainer.determinism.base_seed=99"]
            written, taken, wrong = self.job(), self.job(), self.job()
            taken.config["model_provider"]["model"] = "from_checkpoint"
            for job in (written, taken):
                result = job.run(*from_source)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(job.losses(), first.losses())
            result = wrong.run(*from_source, "model_provider.model.layer.intermediate_size=64")
            self.assert_one_error(result, saves / "save-3" / "manifest.json", "intermediate_size", "got 64")

    def test_sizes_of_a_model_come_from_its_checkpoint(self):
        for model in ("dense", "moe"):
            with self.subTest(model):
                job, again = self.job(model), self.job(model)
                frozen = ["optimizer.lr=0.0", "data.shuffle=false", "model_provider.model.rope_base=500000"]
                for key in ("router_auxiliary_loss_coefficient", "router_bias_update_rate"):  # no keys of config.json
                    job.config["model_provider"]["model"]["layer"].pop(key, None)
                self.assertEqual(job.run(*frozen).returncode, 0)
                again.config["model_provider"]["model"] = "from_checkpoint"
                result = again.run(f"trainer.model_stage_factory.source_checkpoint={job.export}", *frozen[:2])
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(again.losses(), job.losses())
                config = "config.json"
                self.assertEqual(json.loads((again.export / config).read_text()), json.loads((job.export / config).read_text()))

    def test_how_many_positions_are_used_may_differ_from_the_checkpoint(self):
        job = self.job()
        self.assertEqual(job.run("optimizer.lr=0.0", "data.shuffle=false").returncode, 0)
        for change in ("model_provider.model.max_position_ids=2048",
                       'model_provider.model={"from_checkpoint": {"max_position_ids": 2048}}'):
            with self.subTest(change):
                longer = self.job()
                result = longer.run("optimizer.lr=0.0", "data.shuffle=false", change,
                                    f"trainer.model_stage_factory.source_checkpoint={job.export}")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(longer.losses(), job.losses())
                published = json.loads((longer.export / "config.json").read_text())
                self.assertEqual(published["max_position_embeddings"], 2048)

    @needs("transformers")
    def test_exports_reload_in_transformers(self):
        import torch
        import transformers

        for model in ("dense", "moe"):
            with self.subTest(model):
                job = self.job(model)
                self.assertEqual(job.run("optimizer.lr=0.0", "data.shuffle=false").returncode, 0)
                reloaded, info = transformers.AutoModelForCausalLM.from_pretrained(
                    job.export, output_loading_info=True, dtype=torch.float32)
                self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
                text = (job.folder / "text.txt").read_bytes()
                windows = torch.tensor([list(text[i * 32 : i * 32 + 33]) for i in range(8)])
                with torch.no_grad():
                    logits = reloaded(windows[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
                auxiliary = 0.01 if model == "moe" else 2e-6  # this library's loss includes the router's auxiliary loss
                self.assertAlmostEqual(job.losses()[0], loss, delta=auxiliary * loss)

    @needs("transformers")
    def test_evaluations_are_those_of_transformers_on_every_layout(self):
        """In float64, with a last step that is not full, which two of the layouts divide unevenly."""
        import torch
        import transformers

        layouts = ({}, {"data_parallel_shard": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2},
                   {"data_parallel_replicate": 4})
        for mesh in layouts:
            if DEVICE == "cuda" and math.prod(mesh.values()) > most_ranks():
                continue
            with self.subTest(mesh):
                job = self.job()
                text = (job.folder / "text.txt").read_bytes()[: 32 * 13 + 1]
                (job.folder / "validation.txt").write_bytes(text)
                job.config["mesh"] = mesh
                job.config["model_provider"]["dtype"] = "float64"
                job.config["model_provider"]["model"]["num_hidden_layers"] = 2
                job.config["data"]["microbatch_size"] = 2
                job.config["evaluation_data"] = {
                    "validation": job.config["data"] | {"paths": [str(job.folder / "validation.txt")]}}
                job.config["trainer"]["evaluation"] = {"validation": {"period_steps": "last_step"}}
                result = job.run()
                self.assertEqual(result.returncode, 0, result.stderr)
                model = transformers.AutoModelForCausalLM.from_pretrained(job.export, dtype=torch.float64)
                windows = torch.tensor([list(text[i * 32 : i * 32 + 33]) for i in range(13)])
                with torch.no_grad():
                    logits = model(windows[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
                evaluated = job.steps()[-1]
                self.assertEqual(evaluated["validation/num_predicted"], 13 * 32)
                self.assertAlmostEqual(evaluated["validation/loss"], loss, delta=1e-9 * loss)

    @needs("transformers")
    def test_samples_are_written_in_the_form_of_the_data(self):
        """A model that was trained on conversations answers as transformers does with its export."""
        import tokenizers
        import torch
        import transformers

        job = self.job()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        tokenizer.train_from_iterator(["user assistant how many sheep there are 日本"] * 4, tokenizers.trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
            special_tokens=["<|im_start|>", "<|im_end|>"]))
        tokenizer.save(str(job.folder / "tokenizer.json"))
        rows = [[{"role": "user", "content": f"how many {i}"}, {"role": "assistant", "content": "日本 " * (i % 4 + 1)}]
                for i in range(100)]
        (job.folder / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
        loader = {key: job.config["data"][key] for key in ("global_batch_size", "microbatch_size", "num_workers", "shuffle")}
        job.config["data"] = loader | {
            "kind": "jsonl", "paths": ["chats.jsonl"], "messages_column": "messages", "chat_template": "chatml",
            "tokenizer": "tokenizer.json", "cache": "cache", "sequence_length": 64, "view": {"kind": "packed"}}
        job.config["model_provider"]["model"]["split_vocab_size"] = {"bytes": tokenizer.get_vocab_size() + 4}
        job.config["sample"] = {"prompts": ["how many sheep"], "num_tokens": 12, "temperature": 0}
        result = job.run("trainer.schedule.total_steps=20")
        self.assertEqual(result.returncode, 0, result.stderr)
        model = transformers.AutoModelForCausalLM.from_pretrained(job.export, dtype=torch.float32)
        prompt = "<|im_start|>user\nhow many sheep<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0,
                                eos_token_id=tokenizer.token_to_id("<|im_end|>"))[0, ids.shape[1]:].tolist()
        self.assertEqual(result.stdout, f"--- a sample ---\nhow many sheep\n{tokenizer.decode(answer)}\n")

        for changes, words in ((['sample.stop_at=["<|end|>"]'], ["<|end|>", "sample.stop_at"]),
                               (['data={"kind": "tokens", "path": "a", "dtype": "uint16", "sequence_length": 8}',
                                 "data.global_batch_size=8", "data.microbatch_size=8"], ["sample.tokenizer"]),
                               (["sample.tokenizer=nowhere.json"], ["nowhere.json"])):
            with self.subTest(changes):
                other = self.job()
                self.assert_refused(other, other.run(*changes), *words)
        del job.config["sample"]
        self.assertEqual(job.run().stdout, "")

    def test_a_configuration_of_0_16_runs_and_says_what_it_became(self):
        job = self.job()
        data, trainer = job.config["data"], job.config["trainer"]
        trainer["batching"] = {key: data.pop(key) for key in ("global_batch_size", "microbatch_size")}
        trainer["data_loading"] = {"num_workers": data.pop("num_workers")}
        result = job.run()
        self.assertEqual(result.returncode, 0, result.stderr)
        for section in ("trainer.batching", "trainer.data_loading"):
            self.assertRegex(result.stderr, rf"{section} is a section of d9d 0\.16: its keys are read as keys of data")
        self.assertEqual(job.losses(), self.trained())

    def test_a_log_that_is_no_terminal_has_no_control_characters(self):
        result = self.job().run()
        self.assertIn("5/5", result.stderr)
        self.assertNotRegex(result.stderr, r"[\r\x1b]")

    def test_a_terminal_has_one_row_that_is_redrawn(self):
        job = self.job()
        terminal, end = pty.openpty()
        process = job.start(stderr=end, stdout=subprocess.DEVNULL)
        os.close(end)
        shown = b""
        try:
            while part := os.read(terminal, 4096):
                shown += part
        except OSError:  # Linux reports a closed other end like this
            pass
        os.close(terminal)
        self.assertEqual(process.wait(SECONDS), 0, shown)
        shown = shown.replace(b"\r\n", b"\n").decode()  # added by the terminal
        rows = [line for line in shown.split("\n") if "5/5" in line]
        self.assertEqual(len(rows), 1, shown)
        self.assertRegex(rows[0], r"\r.* 5/5 \[=+\] .*100%.*\x1b\[K$")
        self.assertGreaterEqual(rows[0].count("\r"), 2, "the row was never redrawn")
        self.assertTrue(shown.endswith("\n"))


if __name__ == "__main__":
    main()
