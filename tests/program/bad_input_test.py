"""The pretraining examples must report errors in a configuration, its data or the machine."""

import copy
import os
import resource
import socket
import struct
import time
from pathlib import Path

from program_job import REPOSITORY, SECONDS, VOCABULARY, ProgramTest, main


class BadInput(ProgramTest):
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
            "epsilon": (f"{layer}.rms_norm_eps=0", [f"{layer}.rms_norm_eps", "got 0"]),
            "odd head": (f"{layer}.head_dim=7", ["head_dim", "7"]),
            "no heads": (f"{layer}.num_attention_heads=0", [f"{layer}.num_attention_heads"]),
            "vocabulary order": ('model_provider.model.split_vocab_order=["a"]', ["split_vocab_order"]),
            "batch not in microbatches": ("data.microbatch_size=3", ["data.global_batch_size", "data.microbatch_size",
                                                                      "mesh.data_parallel_shard"]),
            "more stages than layers": ("mesh.pipeline_parallel=2", ["mesh.pipeline_parallel", "num_stages_per_rank",
                                                                     "1 layers"]),
            "schedule longer than the job": ("trainer.schedule.total_steps=1", ["lr_scheduler", "1"]),
            "pipeline": ("trainer.pipelining.schedule.schedule=inference", ["trainer.pipelining", "inference", "not built"]),
            "optimiser": ('optimizer={"name": "shampoo", "lr": 0.1}', ["optimizer.name", "shampoo", "adamw"]),
            "group": ('optimizer={"name": "sgd", "lr": 0.1, "groups": [{"name": "odd", "parameters": "nothing"}]}',
                      ["trained parameters in each group", "'odd'", "embed_tokens"]),
            "profiling": ('trainer.profiling={"traces_dir": "t", "period_steps": 2, "warmup_steps": 2, '
                          '"active_steps": 1}', ["trainer.profiling", "warmup_steps + active_steps"]),
            "tracker of a service": ('trainer.logging.tracker={"provider": "wandb", "project": "p", '
                                     f'"python": "{REPOSITORY}/.venv/bin/python"}}', ["wandb", "make trackers"]),
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
        self.assert_refused(job, result, "sequence_length = 32", "max_position_ids = 16")

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
        job.config["sample"] = None  # which would need a tokenizer
        return {**data, "kind": "tokens", "dtype": "uint16", "path": str(job.folder / "tokens.bin")}

    def test_places_that_cannot_be_written_are_refused_before_training(self):
        job = self.job()
        file = job.folder / "file"
        file.write_text("not a folder")
        trackers = "trainer.logging.tracker.trackers"
        self.assert_refused(job, job.run(f"{trackers}.0.path={file}/metrics.jsonl"), file)
        self.assert_refused(job, job.run(f"{trackers}.1.log_dir={file}/tensorboard"), file)
        self.assert_refused(job, job.run(f"export_to={file}/export"), file)
        self.assert_refused(job, job.run(f"trainer.checkpointing.save_dir={file}/saves",
                                         "trainer.checkpointing.period_steps=last_step"), file, "checkpointing.save_dir")

    def test_an_export_does_not_overwrite_what_is_not_an_export(self):
        job = self.job()
        job.export.mkdir(parents=True)
        (job.export / "thesis.txt").write_text("two years of work")
        result = job.run()
        self.assert_one_error(result, job.export)
        self.assertEqual(os.listdir(job.export), ["thesis.txt"])
        self.assertFalse(job.metrics.exists(), "trained for nothing")

    def test_a_full_disk_under_the_metrics_is_one_warning(self):
        job = self.job()
        result = job.run("trainer.logging.tracker.trackers.0.path=/dev/full")
        self.assertEqual(result.returncode, 0, result.stderr)
        warnings = [line for line in result.stderr.splitlines() if " - WARNING - " in line]
        self.assertEqual(len(warnings), 1, result.stderr)
        for word in ("the tracker 'jsonl' records nothing more", "/dev/full", "No space left"):
            self.assertIn(word, warnings[0])
        self.assertTrue((job.export / "model.safetensors").exists())

    def test_a_full_disk_under_the_export_leaves_no_export(self):
        job = self.job()

        def limit_file_size():
            resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))

        # Python ignores the signal of the limit, and so does its child: writes fail with EFBIG instead.
        result = job.run(preexec_fn=limit_file_size, restore_signals=False)
        self.assert_one_error(result, job.export, "File too large")
        self.assert_nothing_half_written(job)
        self.assertEqual(len(job.steps()), 5)

    def test_a_mesh_that_does_not_fit_the_launched_ranks_is_refused(self):
        job = self.job()
        result = job.run("mesh.data_parallel_shard=4", environment={
            "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500"})
        self.assert_refused(job, result, "the 1 ranks that RANK and WORLD_SIZE of the environment name, got 4", "data_parallel_shard=4")

    def test_ranks_are_waited_for_as_long_as_the_configuration_says(self):
        job = self.job()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begin = time.monotonic()
        result = job.run("mesh.data_parallel_replicate=2", "trainer.timeout.init_timeout=1", environment={
            "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)})
        self.assertLess(time.monotonic() - begin, SECONDS / 2)
        self.assert_refused(job, result, "rank 0 of 2 waited 1 s", f"127.0.0.1:{port}", "for ranks: 1")

    def test_too_few_open_files_for_the_ranks_are_refused_before_they_meet(self):
        job = self.job()

        def limit_open_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

        result = job.run("mesh.data_parallel_replicate=8", "launch.ranks=processes", preexec_fn=limit_open_files)
        self.assert_refused(job, result, "expected a limit of at least", "open files", "got 32")


if __name__ == "__main__":
    main()
