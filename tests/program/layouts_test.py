"""The pretraining examples over several ranks, started in all supported ways, and the messages when a rank fails."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from program_job import DEVICE, SECONDS, Job, ProgramTest, main, most_ranks
from safetensors.torch import load_file

# The number of ranks of the largest layout; even.
NUM_RANKS = int(os.environ.get("D9D_TEST_RANKS", "4" if DEVICE == "cpu" or most_ranks() > 3 else "2"))
# Standalone: uses a port of its own, because two runs of this test may run concurrently.
TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--no-python", "--nproc-per-node", str(NUM_RANKS)]
FLOAT32 = 1e-5  # of losses: sums of rounded gradients in another order
EXACT = 1e-9  # fp64: the same mathematics in another order
# bfloat16: gradients are rounded to 2^-9 and summed in another order; later steps differ by the updates of these.
ORDER, LATER = {"loss": 1e-6, "grad_norm": 4e-3}, {"loss": 1e-2, "grad_norm": 5e-2}
GATHERS = ["communicator", "copy_engine"] if DEVICE == "cuda" else ["communicator"]  # processes on CPUs share no memory
RING = "model_provider.context_parallel.attention=ring"
CONTEXT = ["mesh.context_parallel_shard=2", *([RING] if DEVICE == "cuda" else [])]


def fits(*arguments):
    """Whether NUM_RANKS are enough for these degrees of the mesh; expert parallelism divides the others."""
    degrees = [int(argument.split("=")[1]) for argument in arguments
               if argument.startswith("mesh.") and "expert" not in argument]
    return math.prod(degrees) <= NUM_RANKS


class Layouts(ProgramTest):
    jobs_of_one_rank = {}

    def of_one_rank(self, model, *arguments):
        """The job on one rank, which all tests share."""
        key = (model, *arguments)
        if key not in self.jobs_of_one_rank:
            folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))
            self.addClassCleanup(shutil.rmtree, folder)
            self.jobs_of_one_rank[key] = self.trained_in(Job(folder, model), *arguments)
        return self.jobs_of_one_rank[key]

    def run_job(self, model, *arguments, launcher=()):
        return self.trained_in(self.job(model), *arguments, launcher=launcher)

    def trained_in(self, job, *arguments, launcher=()):
        job.config["data"]["microbatch_size"] = 2
        job.config["model_provider"]["dtype"] = "float64"
        result = job.run(command=[*launcher, *job.command(*arguments)])
        self.assertEqual(result.returncode, 0, result.stderr)
        job.sample = result.stdout
        return job

    def assert_same(self, job, expected):
        self.assertEqual(len(job.losses()), len(expected.losses()))
        for ours, theirs in zip(job.steps(), expected.steps(), strict=True):
            for key in ("loss", "grad_norm"):
                self.assertLessEqual(abs(ours[key] - theirs[key]), EXACT * abs(theirs[key]), key)
            self.assertEqual(ours["num_tokens"], theirs["num_tokens"])
        weights = load_file(job.export / "model.safetensors")
        for name, weight in load_file(expected.export / "model.safetensors").items():
            self.assertLessEqual((weights[name] - weight).abs().max(), EXACT * max(weight.abs().max(), 1.0), name)

    def test_every_start_of_a_dense_model_trains_as_one_rank(self):
        expected = self.of_one_rank("dense")
        for name, arguments, launcher in (
            ("by itself", [f"mesh.data_parallel_shard={NUM_RANKS}"], ()),
            ("processes", ["mesh.data_parallel_replicate=2", "launch.ranks=processes"], ()),
            ("torchrun", ["mesh.data_parallel_replicate=2", f"mesh.data_parallel_shard={NUM_RANKS // 2}"], TORCHRUN),
        ):
            with self.subTest(name):
                self.assert_same(self.run_job("dense", *arguments, launcher=launcher), expected)

    def test_every_start_of_experts_trains_as_one_rank(self):
        expected = self.of_one_rank("moe")
        shards = f"mesh.data_parallel_shard={NUM_RANKS}"
        for name, arguments, launcher in (
            ("by itself", [shards, "mesh.expert_parallel=2"], ()),
            ("torchrun", [shards, f"mesh.expert_parallel={NUM_RANKS}"], TORCHRUN),
            ("tensor and shards", ["mesh.tensor_parallel=2", "mesh.data_parallel_shard=2", "mesh.expert_parallel=4"], ()),
        ):
            if not fits(*arguments):
                continue
            with self.subTest(name):
                self.assert_same(self.run_job("moe", *arguments, launcher=launcher), expected)

    def test_composed_computations_train_and_sample_as_one_rank(self):
        """On GPUs they run at once, and experts exchange over a communicator of each lane."""
        layers, single = "model_provider.model.num_hidden_layers=4", "data.microbatch_size=1"
        v = 'trainer.pipelining.schedule={"schedule": "dual_pipe_v"}'
        shards, experts = "mesh.data_parallel_shard=2", "mesh.expert_parallel=2"
        for model, *layout in (
            ("moe", shards, experts),
            ("moe", shards, experts, "model_provider.checkpointing=true"),
            ("moe", "mesh.data_parallel_replicate=2", experts),
            ("moe", shards, experts, "model_provider.fsdp.reshard_after_forward=always",
             "model_provider.fsdp.reduce_on_last_microbatch=false"),
            ("dense", shards),
            ("dense", "mesh.pipeline_parallel=2"),
            ("dense", "mesh.pipeline_parallel=2", "trainer.pipelining.messages=communicator"),
            ("moe", "mesh.pipeline_parallel=2", shards, experts),
        ):
            if not fits(*layout):
                continue
            with self.subTest(model=model, layout=layout):
                expected = self.of_one_rank(model, layers, single)
                job = self.run_job(model, layers, single, v, *layout)
                self.assert_same(job, expected)
                self.assertEqual(job.sample, expected.sample)

    @unittest.skipUnless(DEVICE == "cuda", "graphs are of GPUs")
    def test_replicas_with_graphs_train_as_one_rank(self):
        """Experts in float64 make the host wait for their counts, which a graph cannot capture."""
        job = self.run_job("dense", "mesh.data_parallel_replicate=2", "trainer.cuda_graph={}")
        self.assert_same(job, self.run_job("dense"))

    @unittest.skipUnless(DEVICE == "cuda", "graphs are of GPUs")
    def test_parts_of_layers_with_graphs_train_as_one_rank(self):
        for layout in (["mesh.tensor_parallel=2"], ["mesh.tensor_parallel=2", "mesh.data_parallel_replicate=2"]):
            for exchange in GATHERS:
                if fits(*layout):
                    with self.subTest(exchange, layout=layout):
                        job = self.run_job("dense", *layout, f"model_provider.tensor_parallel.exchange={exchange}",
                                           "trainer.cuda_graph={}")
                        self.assert_same(job, self.of_one_rank("dense"))

    @unittest.skipUnless(DEVICE == "cuda", "graphs are of GPUs")
    def test_stages_with_graphs_train_bit_for_bit_as_without(self):
        layers, single = "model_provider.model.num_hidden_layers=4", "data.microbatch_size=1"
        for replicas in ("mesh.data_parallel_replicate=1", "mesh.data_parallel_replicate=2"):
            if fits("mesh.pipeline_parallel=2", replicas):
                self.assert_same_bits_with_graphs(["mesh.pipeline_parallel=2", replicas, layers, single])

    def assert_same_bits_with_graphs(self, layout):
        for schedule in ({"schedule": "gpipe"}, {"schedule": "1f1b", "num_stages_per_rank": 2, "zero_bubble": True},
                         {"schedule": "zero_bubble_v"}, {"schedule": "dual_pipe_v"}):
            for messages in ("auto", "communicator"):
                pipelining = "trainer.pipelining=" + json.dumps({"messages": messages, "schedule": schedule})
                with self.subTest(pipelining, layout=layout):
                    expected = self.run_job("dense", *layout, pipelining)
                    actual = self.run_job("dense", *layout, pipelining, "trainer.cuda_graph={}")
                    self.assertEqual([step["loss"] for step in actual.steps()], [step["loss"] for step in expected.steps()])
                    weights = load_file(actual.export / "model.safetensors")
                    for key, weight in load_file(expected.export / "model.safetensors").items():
                        self.assertTrue(weight.equal(weights[key]), key)

    @unittest.skipUnless(DEVICE == "cuda", "CPUs compute in other dtypes")
    def test_pipelines_in_bfloat16_train_as_one_gpu_with_the_kernels_of_real_jobs(self):
        """Each microbatch computes as on one GPU, so losses of the first step differ by the order of their sum alone."""
        sizes = ("model_provider.model.num_hidden_layers=4", "data.microbatch_size=1", "data.sequence_length=256",
                 "model_provider.dtype=bfloat16")
        layer = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
        stages, shards, experts = "mesh.pipeline_parallel=2", "mesh.data_parallel_shard=2", "mesh.expert_parallel=2"
        for model, layout in (("dense", [stages]), ("dense", [stages, "mesh.data_parallel_replicate=2"]),
                              ("dense", [stages, shards]), ("moe", [stages]), ("moe", [stages, shards, experts])):
            if not fits(*layout):
                continue
            expected = self.bfloat16_job(model, layer, *sizes)
            for schedule in ({"schedule": "1f1b"}, {"schedule": "zero_bubble_v"}, {"schedule": "dual_pipe_v"}):
                with self.subTest(model=model, layout=layout, schedule=schedule["schedule"]):
                    actual = self.bfloat16_job(model, layer, *sizes, *layout, "trainer.pipelining=" + json.dumps({"schedule": schedule}))
                    for number, (ours, theirs) in enumerate(zip(actual.steps(), expected.steps(), strict=True)):
                        limits = ORDER if number == 0 else LATER
                        for key, limit in limits.items():
                            self.assertLessEqual(abs(ours[key] - theirs[key]), limit * abs(theirs[key]), f"{key} of step {number}")

    def bfloat16_job(self, model, layer, *arguments):
        job = self.job(model)
        job.config["model_provider"]["model"]["layer"].update(layer)
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return job

    def test_slices_that_ranks_copy_train_as_one_rank(self):
        """Started without a launcher: ranks are threads on CPUs and processes on GPUs, and copy from each other."""
        shards = f"mesh.data_parallel_shard={NUM_RANKS}"
        copies = ("model_provider.fsdp.gather=copy_engine", "model_provider.fsdp.reduce=copy_engine",
                  "model_provider.tensor_parallel.exchange=copy_engine")
        for model, arguments, launcher in (
            ("dense", [shards], ()),
            ("dense", [shards, "model_provider.checkpointing=true", "model_provider.fsdp.reshard_after_forward=never"], ()),
            ("dense", [shards, "model_provider.fsdp.reduce_on_last_microbatch=true"], ()),
            ("dense", [shards, "model_provider.model.tie_word_embeddings=true"], ()),
            ("dense", ["mesh.context_parallel_shard=2"], ()),
            ("dense", ["mesh.context_parallel_shard=2", RING], ()),
            ("dense", [f"mesh.context_parallel_shard={NUM_RANKS}", RING, "model_provider.checkpointing=true"], ()),
            ("moe", ["mesh.context_parallel_replicate=2", RING, "mesh.expert_parallel=2"], ()),
            ("dense", ["mesh.tensor_parallel=2"], ()),
            ("dense", ["mesh.tensor_parallel=2", "model_provider.checkpointing=true"], ()),
            ("dense", ["mesh.tensor_parallel=2", "mesh.data_parallel_shard=2"], ()),
            ("dense", ["mesh.data_parallel_replicate=2", "mesh.data_parallel_shard=2"], ()),
            ("moe", [shards, "mesh.expert_parallel=2"], ()),
            ("dense", [shards], TORCHRUN),
        ):
            if not fits(*arguments) or (launcher and DEVICE == "cpu"):
                continue
            with self.subTest(model=model, arguments=arguments, launcher=launcher):
                of_model = [argument for argument in arguments if argument.startswith("model_provider.model")]
                expected = self.of_one_rank(model, *of_model)
                self.assert_same(self.run_job(model, *arguments, *copies, launcher=launcher), expected)

    def test_parts_of_layers_and_of_sequences_train_and_sample_as_one_rank(self):
        tensor, context = "mesh.tensor_parallel=2", "mesh.context_parallel_shard=2"
        checkpoints = "model_provider.checkpointing=true"
        for name, model, arguments, launcher in (
            ("tensor", "dense", [tensor], ()),
            ("tensor, more ranks than heads of keys", "dense", ["mesh.tensor_parallel=4"], ()),
            ("tensor, with experts", "moe", [tensor], ()),
            ("tensor, over experts", "moe", [tensor, "mesh.expert_parallel=2"], ()),
            ("context", "dense", [context, checkpoints], ()),
            ("both", "dense", [tensor, context, checkpoints], ()),
            ("context replicas", "dense", ["mesh.context_parallel_replicate=2"], ()),
            ("torchrun", "dense", [tensor, f"mesh.data_parallel_shard={NUM_RANKS // 2}"], TORCHRUN),
        ):
            if not fits(*arguments):
                continue
            with self.subTest(name):
                expected = self.of_one_rank(model)
                job = self.run_job(model, *arguments, launcher=launcher)
                self.assert_same(job, expected)
                self.assertEqual(job.sample, expected.sample)

    def test_packed_documents_that_ranks_share_train_as_on_one_rank(self):
        packed = 'data.view={"kind":"packed","long_documents":"split"}'
        for mesh in (["mesh.context_parallel_shard=2"], ["mesh.context_parallel_shard=2", "mesh.tensor_parallel=2"]):
            if fits(*mesh):
                with self.subTest(mesh):
                    self.assert_same(self.run_job("dense", packed, *mesh), self.of_one_rank("dense", packed))
    def test_one_program_trains_on_the_mesh_of_its_file(self):
        """In float32, and nothing else of the file differs."""
        losses = {}
        for name, mesh in (
            ("one rank", {}),
            ("PP", {"pipeline_parallel": 2}),
            ("DP", {"data_parallel_replicate": 2}),
            ("FSDP", {"data_parallel_shard": 2}),
            ("EP", {"data_parallel_shard": 2, "expert_parallel": 2}),
            ("TP", {"tensor_parallel": 2}),
            ("CP", {"context_parallel_shard": 2}),
        ):
            job = self.job("moe")
            job.config["mesh"] = mesh
            job.config["data"]["microbatch_size"] = 1
            job.config["model_provider"]["dtype"] = "float32"
            job.config["model_provider"]["model"]["num_hidden_layers"] = 2
            result = job.run()
            self.assertEqual(result.returncode, 0, result.stderr)
            losses[name] = job.losses()
        expected = losses["one rank"]
        self.assertGreater(len(expected), 1)
        for name, of_mesh in losses.items():
            with self.subTest(name):
                self.assertEqual(len(of_mesh), len(expected))
                for ours, theirs in zip(of_mesh, expected, strict=True):
                    self.assertLessEqual(abs(ours - theirs), FLOAT32 * theirs)


    def test_copies_between_processes_on_CPUs_are_refused(self):
        result = self.job().run("mesh.data_parallel_shard=2", "launch.ranks=processes", "launch.device=cpu",
                                "model_provider.fsdp.gather=copy_engine")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"error: .*'dense:dp_cp_shard \(parameters\)' .*gather = copy_engine.*are processes on CPUs")

    def test_a_checkpoint_loads_into_shards(self):
        source = self.of_one_rank("dense")
        load = f"trainer.model_stage_factory.source_checkpoint={source.export}"
        expected = self.run_job("dense", load)
        self.assert_same(self.run_job("dense", load, "mesh.data_parallel_shard=2"), expected)
        if fits("mesh.data_parallel_shard=2", "mesh.tensor_parallel=2"):
            self.assert_same(self.run_job("dense", load, "mesh.data_parallel_shard=2", "mesh.tensor_parallel=2"), expected)


STAGES = ["mesh.pipeline_parallel=2", "model_provider.model.num_hidden_layers=2"]
PIPELINES = ["trainer.pipelining.schedule=" + json.dumps({"schedule": "1f1b", "zero_bubble": split}) for split in (False, True)]


def children_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


class Failures(ProgramTest):
    def started(self, *arguments):
        job = self.job()
        process = job.start("trainer.schedule.total_steps=1000000", "launch.ranks=processes", *arguments,
                            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        for line in process.stderr:
            if re.search(r"train +10/", line):
                return job, process
        self.fail("the program ended before its tenth step")

    def assert_gone(self, pids):
        deadline = time.monotonic() + SECONDS
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            self.assertLess(time.monotonic(), deadline, f"left behind: {pids}")
            os.sched_yield()

    def test_a_killed_rank_ends_the_job_and_is_named(self):
        for layout in (("mesh.data_parallel_shard=2",), ("mesh.tensor_parallel=2",), CONTEXT):
            with self.subTest(layout):
                job, process = self.started(*layout)
                children = children_of(process)
                self.assertEqual(len(children), 2)
                os.kill(children[1], signal.SIGKILL)
                errors = process.stderr.read()
                self.assertEqual(process.wait(SECONDS), 128 + signal.SIGKILL, errors)
                self.assertRegex(errors, r"error: .*rank 1 of 2 .*signal 9")
                self.assert_gone(children)
                self.assert_nothing_half_written(job)

    def test_a_killed_rank_of_a_pipeline_ends_the_job_and_is_named(self):
        for schedule in PIPELINES:
            for rank in (0, 1):
                with self.subTest(schedule=schedule, rank=rank):
                    job, process = self.started(*STAGES, schedule)
                    children = children_of(process)
                    os.kill(children[rank], signal.SIGKILL)
                    errors = process.stderr.read()
                    self.assertEqual(process.wait(SECONDS), 128 + signal.SIGKILL, errors)
                    self.assertRegex(errors, rf"error: .*rank {rank} of 2 .*signal 9")
                    self.assert_gone(children)
                    self.assert_nothing_half_written(job)

    def test_a_rank_of_a_pipeline_that_hangs_ends_the_job_in_time_and_is_named(self):
        timeout, grace = 3, 5  # seconds, as documented
        for schedule in PIPELINES:
            for rank in (0, 1):
                with self.subTest(schedule=schedule, rank=rank):
                    job, process = self.started(*STAGES, schedule,
                                                f"trainer.timeout.step_timeout={timeout}")
                    children = children_of(process)
                    os.kill(children[rank], signal.SIGSTOP)
                    stopped = time.monotonic()
                    limit = threading.Timer(SECONDS, process.kill)  # rather than wait for ever
                    self.addCleanup(limit.cancel)
                    limit.start()
                    errors = process.stderr.read()  # until the last process that holds it has ended
                    self.assertLess(time.monotonic() - stopped, timeout + grace, errors)
                    self.assertEqual(process.wait(SECONDS), 1, errors)
                    self.assertRegex(errors, rf"error: .* waited 3 s .*rank {rank}")
                    self.assert_gone(children)
                    self.assert_nothing_half_written(job)

    def test_a_rank_that_hangs_ends_the_job_in_time_and_is_named(self):
        timeout, grace = 3, 5  # seconds, as documented: 1 to ask for positions, the rest to end
        shards, tensor = "mesh.data_parallel_shard=2", "mesh.tensor_parallel=2"
        fsdp, exchange = "model_provider.fsdp", "model_provider.tensor_parallel.exchange"
        for layout in (*((shards, f"{fsdp}.gather={by}", f"{fsdp}.reduce={by}") for by in GATHERS),
                       *((tensor, f"{exchange}={by}") for by in GATHERS), CONTEXT):
            with self.subTest(layout):
                job, process = self.started(*layout, f"trainer.timeout.step_timeout={timeout}")
                children = children_of(process)
                os.kill(children[1], signal.SIGSTOP)
                stopped = time.monotonic()
                limit = threading.Timer(SECONDS, process.kill)  # rather than wait for ever
                self.addCleanup(limit.cancel)
                limit.start()
                errors = process.stderr.read()  # until the last process that holds it has ended
                self.assertLess(time.monotonic() - stopped, timeout + grace, errors)
                self.assertEqual(process.wait(SECONDS), 1, errors)
                self.assertRegex(errors, r"error: .*rank 0 at operation \d+ \w+\(.* waited 3 s in group '.*' for: rank 1")
                self.assert_gone(children)
                self.assert_nothing_half_written(job)

    def test_no_rank_outlives_a_killed_supervisor(self):
        _, process = self.started("mesh.data_parallel_shard=2")
        children = children_of(process)
        process.kill()
        self.assert_gone(children)

    def test_ctrl_c_ends_all_ranks_after_the_same_step(self):
        job, process = self.started("mesh.data_parallel_shard=2")
        children = children_of(process)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        self.assertEqual(process.wait(SECONDS), 128 + signal.SIGINT, rest)
        self.assertRegex(rest, r"stopped after step \d+ of 1000000")
        self.assert_gone(children)
        self.assert_nothing_half_written(job)


if __name__ == "__main__":
    main(ranks=NUM_RANKS)
