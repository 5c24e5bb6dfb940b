"""Training steps of models in bfloat16 over the GPUs of this machine: alone, apart, sharded, replicated.

usage: layouts.py [--model qwen3-0.6b|qwen3-1.7b|qwen3-8b|llama3-8b|qwen3-moe-small] [--ranks N] [--rows ROW,...]
                  [--trace FOLDER] ...

Random weights and tokens, causal attention, clipping to 1.0, AdamW. Each rank has the microbatches of one rank alone: with
free communication a step would take as long. Row `apart`: all GPUs compute, each alone; the mean of their speeds. A step's time is that between
events of the device at the ends of consecutive steps: the median of those after the warm-up, with their 10th and 90th
percentile. Row `graphs`: one rank alone with trainer.cuda_graph; --sequence and --sequences make a step short enough
for the host to matter. Row `pipeline.1f1b+zero_bubble=true+num_stages_per_rank=2`: a stage or more on each GPU, with that
schedule and as many microbatches in all; `pipeline.1f1b/communicator` hands transfers on by NCCL. Rows `pipeline_shards.1f1b`
and `pipeline_experts.1f1b`: two stages, each sharded over half of the GPUs, and with a part of the experts there. Row `experts`: each GPU has a
part of the experts, and shards of the rest; `experts.dual_pipe_v` runs that schedule on both stages of each GPU. models.py has
the sizes and FLOP a token. llama3-8b has the sizes of Llama 3 and the layers of Qwen3: it also normalises queries and keys.
Row `tensor`: tensor parallelism over all GPUs, which share one rank's microbatches, so that with free communication a step
would take 1 / N as long (column `over one rank`); `tensor/communicator` exchanges activations by NCCL. Row `tensor_shards`: pairs of
tensor-parallel ranks, over which all else is sharded, each pair with one rank's microbatches; `tensor_experts`: the same with
a part of the experts on each of two GPUs. Row `context`: context parallelism over all GPUs, which share each sequence, so that with free communication a step
would take 1 / N as long; `context/gathered` chooses the method of attention. Row `context_shards`: pairs of context-parallel ranks, each
pair with one rank's microbatches. A row that ends in `:packed` has as many tokens, in documents of random lengths that fill the sequences; its TFLOP/s count attention to whole sequences.
Prints Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import peers
from models import MODELS, OPTIMIZERS, REPOSITORY, configuration

sys.path.insert(0, str(REPOSITORY / "benchmarks/communication"))
import exposed  # noqa: E402: found by the line above

PEAK_TFLOPS = 989  # of a Hopper GPU in bfloat16, dense
TRACED_STEPS = 3
ALL_ROWS = "alone,apart,communicator,copy_engine,replicated"
SHARDED_ROWS = "communicator,copy_engine"
EXCHANGES = {"communicator": {"gather": "communicator", "reduce": "communicator"},
             "copied_slices": {"gather": "copy_engine", "reduce": "communicator"},
             "copy_engine": {"gather": "copy_engine", "reduce": "copy_engine"}}
ROWS = {"qwen3-0.6b": "alone,graphs", "qwen3-1.7b": ALL_ROWS, "qwen3-8b": SHARDED_ROWS, "llama3-8b": SHARDED_ROWS,
        "qwen3-moe-small": "alone"}


class UsedMemory(threading.Thread):
    """The most that nvidia-smi saw on any GPU, whoever allocated it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.mebibytes = 0
        self.ended = threading.Event()

    def run(self):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self.ended.wait(1.0):
            try:
                lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            except (OSError, subprocess.CalledProcessError):
                return
            self.mebibytes = max([self.mebibytes, *map(int, lines)])

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()


def pipelining_of_row(row):
    schedule, _, messages = row.partition(".")[2].partition("/")
    name, *keys = schedule.split("+")
    values = dict(key.split("=") for key in keys)
    return {"schedule": {"schedule": name, **{key: json.loads(value) for key, value in values.items()}},
            "messages": messages or "auto"}


def sharing_ranks(row, num_ranks):
    """The ranks that share one rank's microbatches."""
    if not row.startswith(("tensor", "context")):
        return 1
    return 2 if row.startswith(("tensor_shards", "tensor_experts", "context_shards")) else num_ranks


def configuration_of_row(model, options, num_ranks, row, folder):
    steps = options.steps + (TRACED_STEPS + 2 if options.trace else 0)  # the last one logs more
    title = row
    row, _, suffix = row.partition(":")
    config = configuration(model, folder, steps=steps, warm_up=options.warm_up, optimizer=options.optimizer,
                           device=options.device, num_ranks=num_ranks, microbatches=options.microbatches,
                           cuda_graph="graphs" in (row, suffix))
    kind = row.partition(".")[0]
    exchange = row.partition("/")[2] if kind.startswith("tensor") else ""
    if "." in row:
        config["trainer"]["pipelining"] = pipelining_of_row(row)
    if kind.startswith("pipeline"):
        halves = {"pipeline_parallel": 2, "data_parallel_shard": num_ranks // 2}
        config["mesh"] = {"pipeline": {"pipeline_parallel": num_ranks}, "pipeline_shards": halves,
                          "pipeline_experts": {**halves, "expert_parallel": num_ranks // 2}}[kind]
        config["model_provider"]["model"]["pipeline_num_virtual_layers_post"] = options.virtual_layers
    elif kind.startswith("tensor"):
        degree = sharing_ranks(row, num_ranks)
        config["mesh"] = {"tensor_parallel": degree, "data_parallel_shard": num_ranks // degree,
                          "expert_parallel": 2 if kind.startswith("tensor_experts") else 1}
        config["model_provider"]["tensor_parallel"] = {"exchange": exchange or "auto"}
        config["data"]["global_batch_size"] //= degree
    elif kind.startswith("context"):
        degree = sharing_ranks(row, num_ranks)
        config["mesh"] = {"context_parallel_shard": degree, "data_parallel_shard": num_ranks // degree}
        if "/" in row:
            config["model_provider"]["context_parallel"] = {"attention": row.partition("/")[2]}
        config["data"]["global_batch_size"] //= degree
    elif row.startswith("experts"):
        config["mesh"] = {"data_parallel_shard": num_ranks, "expert_parallel": num_ranks}
    else:
        config["mesh"] = {"data_parallel_replicate" if row == "replicated" else "data_parallel_shard": num_ranks}
    config["model_provider"].update(checkpointing=options.checkpointing,
                                    fsdp={"gradient_dtype": options.gradients or model.gradients, **EXCHANGES.get(row, {})})
    config["trainer"].setdefault("gradient_manager", {})["grad_dtype"] = options.gradients or "bfloat16"
    config["trainer"]["model_stage_factory"] = {"master_dtype": options.masters}
    if suffix == "packed":
        num_samples = config["data"]["global_batch_size"] * steps
        config["data"] |= peers.write_documents(folder / "documents.bin", model, num_samples, options.documents)
    if options.trace:
        config["trace"] = {"folder": str(options.trace / f"{options.model}-{title.replace('/', '-').replace(':', '-')}"), "first_step": options.steps + 1,
                           "num_steps": TRACED_STEPS}
    return config


def run(config, folder, options, program, num_programs):
    """The reports of all programs, losses, MiB that were used on a GPU."""
    (folder / "log").unlink(missing_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ}
    command = [options.programs / program, path]
    with UsedMemory() as memory:
        others = [subprocess.Popen([*command, f"report={folder / f'report{gpu}.json'}", "trace=null",
                                    'trainer.logging.tracker={"provider": "null"}'], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env={**environment, "CUDA_VISIBLE_DEVICES": str(gpu)})
                  for gpu in range(1, num_programs)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr, env=environment)
        for other in others:
            if other.wait() != 0:
                raise RuntimeError("a program beside the first one failed")
    losses = [json.loads(line)["loss"] for line in (folder / "log").read_text().splitlines()]
    files = [Path(config["report"]), *(folder / f"report{gpu}.json" for gpu in range(1, num_programs))]
    return [json.loads(file.read_text()) for file in files], losses, memory.mebibytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen3-1.7b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", help=f"of {ALL_ROWS},graphs,copied_slices,pipeline.*,experts,experts.*, also with :graphs or :packed at the end; default: those that fit")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--virtual-layers", type=int, default=0, help="of work that the head of a pipeline counts for")
    parser.add_argument("--sequence", type=int, help="tokens of a sequence, other than the model's")
    parser.add_argument("--sequences", type=int, help="of a microbatch, other than the model's")
    parser.add_argument("--documents", type=int, default=8, help="that are packed into a sequence of a row `:packed`")
    parser.add_argument("--checkpointing", nargs="?", const=True, default=False, type=json.loads, metavar="JSON",
                        help="model_provider.checkpointing: true, or such as '{\"recompute\": \"all_but_attention\"}'")
    parser.add_argument("--gradients", choices=["bfloat16", "float32"], help="default: sharded rows those of the model, others bfloat16")
    parser.add_argument("--masters", choices=["bfloat16", "float32"], default="bfloat16", help="dtype of parameters")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="adamw: float32 moments; stochastic_adamw: bfloat16")
    parser.add_argument("--trace", type=Path, help=f"folder for traces of {TRACED_STEPS} steps more; adds what is exposed")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    for row in (options.rows or "").split(","):
        if row.partition(":")[2] not in ("", "graphs", "packed"):
            parser.error(f"expected rows that end in :graphs or :packed, or neither, got {row}")
    model = MODELS[options.model]
    if options.layers:
        model = model._replace(layers=options.layers)
    model = model._replace(sequence=options.sequence or model.sequence, microbatch=options.sequences or model.microbatch)
    print(f"{options.model}, {model.sequence} x {model.microbatch} x {options.microbatches} a GPU, {options.optimizer}, "
          f"parameters in {options.masters}, gradients of shards in {options.gradients or model.gradients}"
          f"{f', checkpointing {json.dumps(options.checkpointing)}' if options.checkpointing else ''}; {options.steps} steps, {options.warm_up} warm-up\n")
    print("| row | GPUs | step ms (p10..p90) | tokens/s/GPU | TFLOP/s | MFU | over one rank | GiB: allocated | reserved | "
          "on the GPU | exposed | losses |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    alone = {}  # of sequences that are packed, and that are not
    for row in (options.rows or ROWS[options.model]).split(","):
        name, _, suffix = row.partition(":")
        is_packed, num_ranks = suffix == "packed", 1 if name in ("alone", "apart", "graphs") else options.ranks
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            config = configuration_of_row(model, options, num_ranks, row, folder)
            reports, losses, used = run(config, folder, options, model.program, options.ranks if name == "apart" else 1)
        report = reports[0]
        # Of several programs the step that has the mean of their speeds.
        steps = [statistics.harmonic_mean(step) for step in zip(*(each["step_ms"] for each in reports))]
        steps = steps[options.warm_up - 1 : options.steps - 1]
        deciles = statistics.quantiles(steps if len(steps) > 1 else steps * 2, n=10, method="inclusive")
        median = statistics.median(steps)
        if name == "alone":
            alone[is_packed] = median
        degree = sharing_ranks(row, num_ranks)
        tokens = model.sequence * model.microbatch * options.microbatches / degree / median * 1e3
        teraflops = tokens * model.flop_per_token() / 1e12
        over = f"{100 * (median * degree / alone[is_packed] - 1):+.1f} %" if is_packed in alone else ""
        share = ""
        if options.trace and options.device == "cuda":
            share = f"{100 * exposed.read(Path(config['trace']['folder']) / 'rank0.json').share():.2f} %"
        memory = [f"{report[key] / 2**30:.1f}" for key in ("peak_allocated_bytes", "peak_reserved_bytes")]
        print(f"| {row} | {1 if name in ('alone', 'graphs') else options.ranks} | {median:.1f} ({deciles[0]:.1f}..{deciles[-1]:.1f}) | {tokens:,.0f} | {teraflops:.0f} | "
              f"{100 * teraflops / PEAK_TFLOPS:.1f} % | {over} | {' | '.join(memory)} | {used / 1024:.1f} | {share} | "
              f"{losses[0]:.4f}..{losses[-1]:.4f} |", flush=True)


main()
