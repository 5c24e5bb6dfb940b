"""d9d_plan as a user runs it."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

PROGRAM = sys.argv[1]
ROOT = Path(__file__).resolve().parents[2]
DENSE = ROOT / "examples/qwen3_dense/pretrain/pretrain.json"
EXPERTS = ROOT / "examples/qwen3_moe/pretrain/pretrain.json"
MODEL = ROOT / "d9d/models/qwen3_dense/presets/8B.json"
LLAMA = ROOT / "d9d/models/llama3/presets/3.1-8B.json"


def run(*arguments, code=0):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == code, (arguments, result)
    if code in (1, 2):
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr  # one clear line
        return result.stderr
    return result.stdout


def check_jobs():
    """Every job that the examples ship; a program that is no pretraining job is refused by name."""
    planned = 0
    for job in sorted(ROOT.glob("examples/**/*.json")):
        config = json.loads(job.read_text())
        if not {"model_provider", "trainer", "data"} <= config.keys():
            assert "plan_memory()" in run(job, code=1)
            continue
        if config["model_provider"]["model"] == "from_checkpoint":
            continue  # the checkpoint is not shipped
        table = run(job)
        assert "on 1 rank, gpipe, 4 microbatches of 4 x 256" in table, table
        planned += 1
    assert planned == 3
    assert "checkpointed on 2 ranks (data_parallel_shard 2)" in run(
        DENSE, "model_provider.checkpointing=true", "mesh.data_parallel_shard=2")


def check_model():
    """Sizes that are known: 8,190,735,360 parameters of Qwen3 8B, of 2 bytes and 8 of moments each, and rotary tables."""
    table = run(MODEL, "--microbatch", "1x128", "--microbatches", 1).splitlines()
    assert table[2].split()[2] == "8190735360", table
    assert "15.28 GiB" in table[2] and "61.03 GiB" in table[2], table
    pipeline = run(MODEL, "--mesh", "pipeline_parallel=2", "--schedule", "1f1b,num_stages_per_rank=2,zero_bubble=true",
                   "--optimizer", "stochastic_adamw,lr=1e-4,state_dtype=bfloat16", "--microbatch", "1x128")
    assert "1f1b, V = 2, zero bubble, 4 microbatches of 1 x 128" in pipeline, pipeline
    elements = [line.split()[2] for line in pipeline.splitlines() if line.startswith("  stage")]
    assert sum(map(int, elements)) == 8190735360, elements


def check_averages():
    """trainer.ema adds 4 bytes an element of bfloat16 parameters to the moments, here as many as the moments' 4."""
    optimizer = 'optimizer={"name": "stochastic_adamw", "lr": 1e-4, "state_dtype": "bfloat16"}'
    dtype = "model_provider.dtype=bfloat16"

    def of_rank(*overrides):
        return run(DENSE, optimizer, dtype, *overrides).splitlines()[2].split()

    alone, averaged = of_rank(), of_rank('trainer.ema={"decay": 0.999}')
    different = [(old, new) for old, new in zip(alone, averaged, strict=True) if old != new]
    (moments, both), _total = different
    assert abs(float(both) / float(moments) - 2) < 0.01, (alone, averaged)


def check_families():
    """The family is what the flag says, the checkpoint's config.json, a preset's folder, or the first with a layer's keys."""
    sizes = ("--microbatch", "1x128", "--microbatches", 1)
    table = run(LLAMA, *sizes).splitlines()
    assert table[0].startswith("llama3, 32 layers") and table[2].split()[2] == "8030261248", table
    assert run(LLAMA, "--family", "qwen3_dense", *sizes).startswith("qwen3_dense, 32 layers")
    assert run(EXPERTS).startswith("qwen3_moe, ")
    assert "one of qwen3_dense, qwen3_moe, llama3, qwen2" in run(LLAMA, "--family", "gpt", code=2)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(LLAMA, Path(folder) / "model.json")
        assert run(copy, *sizes).startswith("qwen3_dense, 32 layers")
        shutil.copy(ROOT / "tests/data/published_configs/Llama-3.2-1B-Instruct.json", Path(folder) / "config.json")
        save_file({"model.norm.weight": torch.ones(2048)}, Path(folder) / "model.safetensors")
        from_checkpoint = [f"trainer.model_stage_factory.source_checkpoint={folder}", "model_provider.model=from_checkpoint"]
        assert run(DENSE, *from_checkpoint).startswith("llama3, 16 layers"), run(DENSE, *from_checkpoint)


def check_memory():
    assert "fits, leaves" in run(MODEL, "--microbatch", "1x128", "--microbatches", 1, "--memory", "200GiB")
    table = run(MODEL, "--microbatch", "1x128", "--microbatches", 1, "--memory", "80GiB", code=3)
    assert "does not fit: lacks" in table and "mesh.data_parallel_shard=2" in table and "stochastic_adamw" in table, table
    table = run(MODEL, "--microbatch", "1x128", "--mesh", "data_parallel_replicate=4", "--memory", "80GiB", code=3)
    for axis in ("data_parallel_shard", "pipeline_parallel", "tensor_parallel", "context_parallel_shard"):
        assert f"mesh.data_parallel_replicate=2 mesh.{axis}=2 (as many ranks" in table, table
    classic = run(MODEL, "--microbatch", "1x128", "--mesh", "pipeline_parallel=2", "--schedule", "1f1b")
    assert "1f1b, V = 1, 4 microbatches" in classic, classic


def check_meshes():
    """Each line of the list is what the job's plan says with the keys of the line; every axis is tried."""
    sizes = ("--microbatch", "1x128")
    listed = run(MODEL, "--ranks", 4, *sizes).splitlines()
    meshes = {line.split(": ")[1]: line.split(": ")[0].strip() for line in listed[1:] if line.startswith("  ")}
    assert listed[0].startswith("Meshes of 4 ranks") and len(meshes) == 21, listed
    for keys in ("mesh.data_parallel_shard=4", "mesh.pipeline_parallel=2 mesh.tensor_parallel=2", "mesh.context_parallel_shard=4"):
        table = run(MODEL, *keys.split(), *sizes).splitlines()
        assert any(line.endswith(meshes[keys]) for line in table), (keys, meshes[keys], table)
    order = [float(size.split()[0]) for size in meshes.values() if size.endswith("GiB")]
    assert order == sorted(order), meshes
    fits = run(MODEL, "--ranks", 4, *sizes, "--memory", "40GiB")
    assert "leaves" in fits and "do not fit in 40.00 GiB" in fits and "mesh.data_parallel_replicate=4" not in fits, fits
    assert "do not fit" in run(MODEL, "--ranks", 2, *sizes, "--memory", "4GiB", code=3)
    experts = run(EXPERTS, "--ranks", 2, "model_provider.model.num_hidden_layers=2", *sizes)
    assert "mesh.tensor_parallel=2 mesh.expert_parallel=2" in experts and "are refused" not in experts, experts
    assert "got both" in run(MODEL, "--ranks", 2, "--mesh", "data_parallel_shard=2", code=2)


def check_errors():
    assert "--microbatches" in run("--help")
    assert "expected a file" in run(code=2)
    assert "unknown option '--gpu'" in run(MODEL, "--gpu", code=2)
    assert "--memory SIZE" in run(MODEL, "--memory", "much", code=2)
    assert "80 bytes. Add the unit, as in 80GiB." in run(MODEL, "--memory", "80", code=2)
    assert "--microbatch BxS" in run(MODEL, "--microbatch", 4096, code=2)
    assert "Did you mean 'pipeline_parallel'" in run(MODEL, "--mesh", "pipeline_paralel=2", code=1)
    assert "expert_parallel" in run(MODEL, "--mesh", "data_parallel_shard=2,expert_parallel=3", code=1)
    assert "microbatches" in run(MODEL, "--mesh", "pipeline_parallel=2", "--schedule", "dual_pipe_v",
                                 "--microbatches", 1, code=1)
    assert "num_stages_per_rank" in run(MODEL, "--mesh", "pipeline_parallel=2", "--schedule", "looped_bfs", code=1)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(DENSE.read_text().replace('"hidden_size"', '"hiden_size"'))
        assert "hiden_size" in run(job, code=1)


check_jobs()
check_model()
check_averages()
check_families()
check_memory()
check_meshes()
check_errors()
