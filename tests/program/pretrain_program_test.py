"""Drives the pretraining examples as a user does: command lines, files, signals, a terminal.

usage: pretrain_program_test.py <folder of the programs> [BadInput | BadWeights | Run | Interrupt]...
"""

import copy
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path()  # set from the command line
SECONDS = 60  # far more than a program of this test needs
VOCABULARY = 256
PIECEWISE = [
    {"mode": "steps", "steps": 2, "target_multiplier": 1.0, "curve": {"type": "linear"}},
    {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "cosine"}},
]


class Job:
    """A folder with the shipped configuration of one example, made tiny."""

    def __init__(self, folder, model="dense"):
        self.folder = Path(folder)
        self.program = PROGRAMS / f"qwen3_{model}_pretrain"
        text = self.folder / "text.txt"
        text.write_text("".join(f"line {i}: {i * i}\n" for i in range(400)))
        shipped = REPOSITORY / f"examples/qwen3_{model}/pretrain/pretrain.json"
        self.config = config = json.loads(shipped.read_text())
        config["launch"] = {"device": "cpu", "num_threads": 1}
        config["data"].update(paths=[str(text)], sequence_length=32, global_batch_size=8, microbatch_size=4)
        config["model_provider"]["model"]["num_hidden_layers"] = 1
        config["model_provider"]["model"]["layer"].update(
            hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
        config["trainer"]["schedule"]["total_steps"] = 5
        config["lr_scheduler"]["scheduler"]["phases"] = PIECEWISE
        self.metrics = self.folder / "run/metrics.jsonl"
        self.tensorboard = self.folder / "run/tensorboard"
        jsonl, tensorboard = config["trainer"]["logging"]["tracker"]["trackers"]
        jsonl["path"], tensorboard["log_dir"] = str(self.metrics), str(self.tensorboard)
        self.export = self.folder / "run/export"
        config["export_to"] = str(self.export)

    def command(self, *arguments):
        path = self.folder / "pretrain.json"
        path.write_text(json.dumps(self.config))
        return [str(self.program), str(path), *arguments]

    def run(self, *arguments, command=None, environment=None, **options):
        return subprocess.run(command or self.command(*arguments), capture_output=True, timeout=SECONDS,
                              encoding="utf-8", errors="replace",  # the sample of a byte-level model is any bytes
                              cwd=self.folder, env={**os.environ, **(environment or {})}, **options)

    def start(self, *arguments, **options):
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, **options)

    def losses(self):
        return [step["loss"] for step in self.steps()]

    def steps(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def leftovers(self):
        return [str(path) for path in self.folder.rglob("*.tmp-*")]


class ProgramTest(unittest.TestCase):
    def job(self, model="dense"):
        folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
        self.addCleanup(shutil.rmtree, folder)
        return Job(folder, model)

    def trained(self, model="dense", arguments=(), **sections):
        """Losses of a run whose configuration has `sections` changed."""
        job = self.job(model)
        for section, values in sections.items():
            job.config[section].update(values)
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return job.losses()

    def assert_refused(self, job, result, *words, exit_code=1):
        """One line on standard error that names `words`; no training, nothing half-written."""
        self.assert_one_error(result, *words, exit_code=exit_code)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertFalse(job.metrics.exists() and job.metrics.read_text(), "a step was logged")
        self.assert_nothing_half_written(job)

    def assert_one_error(self, result, *words, exit_code=1):
        self.assertEqual(result.returncode, exit_code, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertEqual(result.stderr.splitlines()[-1], errors[0])
        for word in words:
            self.assertIn(str(word), errors[0])
        self.assertNotRegex(errors[0], r"std::|c10::|at::|basic_string|nlohmann|\x1b", "C++ in a message for users")

    def assert_nothing_half_written(self, job):
        self.assertFalse(job.export.exists(), "an export of a job that failed")
        self.assertEqual(job.leftovers(), [])


class BadInput(ProgramTest):
    """What a configuration, its data or the machine can have wrong."""

    def test_values_of_the_configuration_are_refused_with_their_key(self):
        layer = "model_provider.model.layer"
        cases = {
            "misspelt key": ("trainer.schedule.total_stepz=5", ["trainer.schedule.total_stepz", "total_steps"]),
            "wrong type": ("trainer.schedule.total_steps=many", ["trainer.schedule.total_steps", "many"]),
            "out of range": ("data.global_batch_size=0", ["data.global_batch_size", "0"]),
            "learning rate": ("optimizer.lr=-1", ["optimizer.lr", "-1"]),
            "unknown dtype": ("model_provider.dtype=float8", ["model_provider.dtype", "float8", "bfloat16"]),
            "unknown tracker": ("trainer.logging.tracker.provider=x", ["trainer.logging.tracker", "x", "jsonl"]),
            "heads not in groups": (f"{layer}.num_key_value_heads=3", ["num_attention_heads", "num_key_value_heads"]),
            "odd head": (f"{layer}.head_dim=7", ["head_dim", "7"]),
            "no heads": (f"{layer}.num_attention_heads=0", [f"{layer}.num_attention_heads"]),
            "vocabulary order": ('model_provider.model.split_vocab_order=["a"]', ["split_vocab_order"]),
            "batch not in microbatches": ("data.microbatch_size=3", ["global_batch_size", "microbatch_size"]),
            "schedule longer than the job": ("trainer.schedule.total_steps=1", ["lr_scheduler", "1"]),
            "parallel mesh": ("mesh.data_parallel_shard=2", ["mesh.data_parallel_shard", "2", "not built"]),
            "optimiser": ('optimizer={"name": "sgd", "lr": 0.1}', ["optimizer.name", "sgd", "adamw"]),
            "profiling": ('trainer.profiling={"traces_dir": "t", "period_steps": 9, "warmup_steps": 1, '
                          '"active_steps": 1}', ["trainer.profiling", "not built"]),
            "checkpoints": ("trainer.checkpointing.period_steps=10", ["trainer.checkpointing.period_steps", "10"]),
            "tracker of a service": ('trainer.logging.tracker={"provider": "wandb", "project": "p"}', ["wandb"]),
            "override into nothing": ("trainer.schedule.total_steps.x=5", ["trainer.schedule.total_steps"]),
            "override beyond a list": ("lr_scheduler.scheduler.phases.7.steps=5", ["phases", "7"]),
        }
        for name, (override, words) in cases.items():
            with self.subTest(name):
                job = self.job()
                self.assert_refused(job, job.run(override), *words)

    def test_values_of_the_moe_configuration_are_refused_with_their_key(self):
        job = self.job("moe")
        result = job.run("model_provider.model.layer.experts_top_k=9")
        self.assert_refused(job, result, "experts_top_k", "num_experts", "9")

    def test_missing_keys_are_named(self):
        for path in ("mesh", "optimizer.lr", "trainer.determinism.base_seed", "model_provider.model.rope_base",
                     "export_to", "data.kind"):
            with self.subTest(path):
                job = self.job()
                *parents, key = path.split(".")
                section = job.config
                for parent in parents:
                    section = section[parent]
                del section[key]
                self.assert_refused(job, job.run(), key)

    def test_configuration_files_that_cannot_be_read_are_named(self):
        job = self.job()
        program = str(job.program)
        broken = job.folder / "broken.json"
        broken.write_text('{"mesh": {},\n "data": }')
        self.assert_refused(job, job.run(command=[program, "absent.json"]), "absent.json")
        self.assert_refused(job, job.run(command=[program, str(job.folder)]), job.folder)
        self.assert_refused(job, job.run(command=[program, str(broken)]), "broken.json", "line 2")

    def test_command_lines_that_make_no_sense_are_told_the_right_form(self):
        job = self.job()
        for command in ([str(job.program)], [str(job.program), "--what"], job.command("no_assignment"),
                        job.command("=5")):
            with self.subTest(command[1:]):
                self.assert_refused(job, job.run(command=command), "key.path=value", exit_code=2)

    def test_data_that_cannot_be_trained_on_is_named(self):
        job = self.job()
        empty, short, odd = job.folder / "empty", job.folder / "short", job.folder / "odd"
        empty.write_bytes(b"")
        short.write_bytes(b"0123456789")
        odd.write_bytes(bytes(301))
        cases = {
            "no file": ('data.paths=["nowhere/*.txt"]', ["nowhere/*.txt"]),
            "no paths": ("data.paths=[]", ["path"]),
            "empty file": (f'data.paths=["{empty}"]', [empty, "empty"]),
            "shorter than a sequence": (f'data.paths=["{short}"]', [short, "33"]),
            "smaller vocabulary than bytes": ('model_provider.model.split_vocab_size={"bytes": 100}', ["256", "100"]),
        }
        for name, (override, words) in cases.items():
            with self.subTest(name):
                self.assert_refused(job, job.run(override), *words)
        job.config["data"] = {**self.tokens(job), "path": str(odd)}
        self.assert_refused(job, job.run(), odd, "301")

    def test_sequences_longer_than_the_positions_of_the_model_are_refused(self):
        job = self.job()
        result = job.run("model_provider.model.max_position_ids=16")
        self.assert_one_error(result, "max_position_ids", "16")
        self.assert_nothing_half_written(job)

    def test_a_single_pass_over_data_without_a_whole_batch_is_refused(self):
        job = self.job()
        self.assert_refused(job, job.run("trainer.schedule.total_steps=null", "data.global_batch_size=4096"),
                            "at least one step", "global batch")

    def test_a_token_outside_the_vocabulary_is_found_with_its_place(self):
        job = self.job()
        job.config["data"] = self.tokens(job)
        tokens = [i % VOCABULARY for i in range(4000)]
        tokens[1234] = VOCABULARY + 1
        Path(job.config["data"]["path"]).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
        result = job.run("trainer.schedule.total_steps=50")
        self.assert_one_error(result, job.config["data"]["path"], VOCABULARY + 1, "1234")
        self.assert_nothing_half_written(job)

    def tokens(self, job):
        data = copy.deepcopy(job.config["data"])
        del data["paths"]
        return {**data, "kind": "tokens", "dtype": "uint16", "path": str(job.folder / "tokens.bin")}

    def test_places_that_cannot_be_written_are_refused_before_training(self):
        job = self.job()
        file = job.folder / "file"
        file.write_text("not a folder")
        trackers = "trainer.logging.tracker.trackers"
        self.assert_refused(job, job.run(f"{trackers}.0.path={file}/metrics.jsonl"), file)
        self.assert_refused(job, job.run(f"{trackers}.1.log_dir={file}/tensorboard"), file)
        self.assert_refused(job, job.run(f"export_to={file}/export"), file)

    def test_an_export_does_not_overwrite_what_is_not_an_export(self):
        job = self.job()
        job.export.mkdir(parents=True)
        (job.export / "thesis.txt").write_text("two years of work")
        result = job.run()
        self.assert_one_error(result, job.export)
        self.assertEqual(os.listdir(job.export), ["thesis.txt"])
        self.assertFalse(job.metrics.exists(), "trained for nothing")

    def test_a_full_disk_under_the_metrics_stops_the_run(self):
        job = self.job()
        result = job.run("trainer.logging.tracker.trackers.0.path=/dev/full")
        self.assert_one_error(result, "/dev/full", "No space left")
        self.assert_nothing_half_written(job)

    def test_a_full_disk_under_the_export_leaves_no_export(self):
        job = self.job()

        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))

        # Python ignores the signal that goes with the limit, and so does its child: writes fail with EFBIG instead.
        result = job.run(preexec_fn=limit_file_size, restore_signals=False)
        self.assert_one_error(result, job.export, "File too large")
        self.assert_nothing_half_written(job)
        self.assertEqual(len(job.steps()), 5)

    def test_a_launcher_of_several_processes_is_refused(self):
        for name in ("WORLD_SIZE", "SLURM_NTASKS"):
            job = self.job()
            self.assert_refused(job, job.run(environment={name: "2"}), name, "2")


class BadWeights(ProgramTest):
    """source_checkpoint folders that are damaged, or of another model."""

    def setUp(self):
        self.source = self.job()
        result = self.source.run("trainer.schedule.total_steps=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.file = self.source.export / "model.safetensors"
        content = self.file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        self.header = json.loads(content[8 : 8 + length])
        self.data = content[8 + length :]

    def write(self, header, data):
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def assert_weights_refused(self, *words, arguments=()):
        job = self.job()
        result = job.run(f"trainer.model_stage_factory.source_checkpoint={self.source.export}", *arguments)
        self.assert_refused(job, result, *words)

    def test_damaged_files_are_refused(self):
        name, entry = next((n, e) for n, e in self.header.items() if n != "__metadata__")
        begin, end = entry["data_offsets"]
        lies = {
            "beyond the file": {**entry, "data_offsets": [begin, end + (1 << 40)]},
            "fewer bytes than the shape": {**entry, "data_offsets": [begin, end - 4]},
            "backwards": {**entry, "data_offsets": [end, begin]},
            "negative shape": {**entry, "shape": [-1, *entry["shape"][1:]]},
            "overflowing shape": {**entry, "shape": [1 << 62, 1 << 62]},
            "unknown dtype": {**entry, "dtype": "F77"},
            "no shape": {"dtype": "F32", "data_offsets": [begin, end]},
            "not an entry": 7,
        }
        for lie, changed in lies.items():
            with self.subTest(lie):
                self.write({**self.header, name: changed}, self.data)
                self.assert_weights_refused(self.file)
        self.write(self.header, self.data)
        whole = self.file.read_bytes()
        files = {
            "empty": b"",
            "header length beyond the file": struct.pack("<Q", 1 << 62) + b"{}",
            "header is no JSON": struct.pack("<Q", 8) + b"pickled!",
            "truncated": whole[: len(whole) // 2],
            "truncated by one byte": whole[:-1],
        }
        for damage, content in files.items():
            with self.subTest(damage):
                self.file.write_bytes(content)
                self.assert_weights_refused(self.file)

    def test_a_missing_tensor_is_named(self):
        norm = "model.norm.weight"
        self.write({"other" if name == norm else name: entry for name, entry in self.header.items()}, self.data)
        self.assert_weights_refused(norm)

    def test_a_tensor_of_another_shape_is_named(self):
        self.assert_weights_refused("gate_proj", "48", "64",
                                    arguments=["model_provider.model.layer.intermediate_size=64"])

    def test_a_folder_without_weights_is_named(self):
        self.file.unlink()
        self.assert_weights_refused(self.source.export, "model.safetensors")
        shutil.rmtree(self.source.export)
        self.assert_weights_refused(self.source.export)


class Run(ProgramTest):
    """Runs that succeed."""

    def test_help_and_schema_need_no_configuration(self):
        job = self.job()
        usage = job.run(command=[str(job.program), "--help"])
        self.assertEqual((usage.returncode, usage.stderr), (0, ""))
        self.assertIn("trainer", usage.stdout)
        schema = job.run(command=[str(job.program), "--schema"])
        self.assertEqual((schema.returncode, schema.stderr), (0, ""))
        self.assertIn("trainer", json.loads(schema.stdout)["properties"])

    def test_every_step_is_logged_alike_by_both_trackers(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        for model in ("dense", "moe"):
            with self.subTest(model):
                job = self.job(model)
                result = job.run()
                self.assertEqual(result.returncode, 0, result.stderr)
                steps = job.steps()
                self.assertEqual([step["step"] for step in steps], [0, 1, 2, 3, 4])
                names = ["loss", "grad_norm", "lr", "num_tokens", "step_seconds"]
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
                auxiliary = 0.01 if model == "moe" else 2e-6  # the router's auxiliary loss is part of ours
                self.assertAlmostEqual(job.losses()[0], loss, delta=auxiliary * loss)

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
        except OSError:  # how Linux says that the other end was closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(SECONDS), 0, shown)
        shown = shown.replace(b"\r\n", b"\n").decode()  # the terminal's own doing
        rows = [line for line in shown.split("\n") if "5/5" in line]
        self.assertEqual(len(rows), 1, shown)
        self.assertRegex(rows[0], r"\r.* 5/5 \[=+\] .*100%.*\x1b\[K$")
        self.assertGreaterEqual(rows[0].count("\r"), 2, "the row was never redrawn")
        self.assertTrue(shown.endswith("\n"))


class Interrupt(ProgramTest):
    """Ctrl-C and SIGTERM. Each waits for a line of the program before it sends a signal."""

    def started(self, *arguments):
        job = self.job()
        process = job.start("trainer.schedule.total_steps=1000000", *arguments, stderr=subprocess.PIPE,
                            stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return job, process

    def wait_for(self, process, pattern):
        for line in process.stderr:
            if re.search(pattern, line):
                return
        self.fail(f"the program ended before it printed {pattern}")

    def test_a_signal_ends_the_run_after_the_running_step(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                job, process = self.started()
                self.wait_for(process, r"train +10/")
                process.send_signal(number)
                rest = process.stderr.read()
                self.assertEqual(process.wait(SECONDS), 0, rest)
                stopped = re.search(r"stopped after step (\d+) of 1000000", rest)
                self.assertTrue(stopped, rest)
                self.assertTrue(job.metrics.read_text().endswith("}\n"))
                self.assertEqual([step["step"] for step in job.steps()], list(range(int(stopped[1]))))
                self.assert_nothing_half_written(job)

    def test_a_second_signal_ends_the_program_at_once(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                # A step of a million sequences: it cannot end before the second signal.
                job, process = self.started("data.global_batch_size=1000000", "data.sequence_length=2",
                                            "data.num_workers=0")
                self.wait_for(process, "training")
                process.send_signal(number)
                self.wait_for(process, "stopping after this step")
                process.send_signal(number)
                self.assertEqual(process.wait(SECONDS), -number)
                self.assert_nothing_half_written(job)


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv.pop(1)).resolve()
    unittest.main()
