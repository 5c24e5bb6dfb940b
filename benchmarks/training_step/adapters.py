"""A training step of LoRA beside Hugging Face peft's with torch.compile, in one run: a dense model in bfloat16 on one GPU.

usage: adapters.py [--model llama3-8b] [--sequence N] [--sequences N] [--rank N] [--compile ROW,...] [--trace FOLDER]
                   [--device cuda|cpu] [--layers N] [--programs FOLDER]

Adapters of the seven linears of each layer (of experts too, each with its own), everything else frozen; random weights and
tokens, AdamW, clipping to 1.0, no activation checkpointing. Both are Qwen3 (normalised queries and keys) of the given sizes: ours is a program of layouts.py, the
peer is transformers with SDPA attention and peft, whose layers or whole model go through torch.compile, as does the loss. A
step's time is that between events of the device at the ends of consecutive steps: the median of those after the warm-up, with
their 10th and 90th percentile. TFLOP/s: 4 N + 6 L n_q d S FLOP a token, without what adapters add and without gradients of frozen
weights. cpu: to try the script. Prints Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from models import MODELS, REPOSITORY, configuration

PATTERN = ".*_proj"


def steps_of_ours(model, options, folder):
    config = configuration(model, folder, steps=options.steps + (5 if options.trace else 0), warm_up=options.warm_up,
                           device=options.device)
    config["model_provider"]["adapters"] = {"kind": "lora", "module_name_pattern": PATTERN,
                                            "params": {"r": options.rank, "alpha": 2 * options.rank, "dropout": 0.0}}
    if options.trace:
        config["trace"] = {"folder": str(options.trace), "first_step": options.steps + 1, "num_steps": 3}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    subprocess.run([options.programs / model.program, path], check=True, stdout=subprocess.DEVNULL,
                   env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ})
    report = json.loads((folder / "report.json").read_text())
    loss = json.loads((folder / "log").read_text().splitlines()[-1])["loss"]
    return report["step_ms"][: options.steps - 1], report["peak_allocated_bytes"], loss


def peer(arguments):
    sys.path.pop(0)  # this folder, whose kernels.py would be found for the package `kernels`
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.nn import functional
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model_sizes, device = MODELS[arguments["model"]]._replace(**arguments["sizes"]), torch.device(arguments["device"])
    is_cuda = device.type == "cuda"
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = Qwen3ForCausalLM._from_config(
            Qwen3Config(vocab_size=model_sizes.vocabulary, hidden_size=model_sizes.hidden, num_hidden_layers=model_sizes.layers,
                        intermediate_size=model_sizes.intermediate, num_attention_heads=model_sizes.heads,
                        num_key_value_heads=model_sizes.key_value_heads, head_dim=model_sizes.head_dim, use_cache=False,
                        max_position_embeddings=40960, rope_theta=model_sizes.rope_base, tie_word_embeddings=False),
            attn_implementation="sdpa", dtype=torch.bfloat16)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=arguments["rank"], lora_alpha=2 * arguments["rank"], target_modules=names),
                           autocast_adapter_dtype=False)
    model.train()

    def mean_loss(logits, labels):
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    run = model
    if arguments["compile"] == "layers":
        for layer in model.base_model.model.model.layers:
            layer.compile()
    elif arguments["compile"] == "model":
        run = torch.compile(model)
    if arguments["compile"] != "none":
        mean_loss = torch.compile(mean_loss)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=is_cuda)
    tokens = torch.frombuffer(bytearray((Path(arguments["folder"]) / "tokens.bin").read_bytes()), dtype=torch.int32).long()
    samples = tokens.numel() // model_sizes.sequence
    ends, loss = [], None
    for step in range(arguments["steps"]):
        if step == arguments["warm_up"] and is_cuda:
            torch.cuda.reset_peak_memory_stats()
        first = [(step * model_sizes.microbatch + i) % samples * model_sizes.sequence for i in range(model_sizes.microbatch)]
        rows = torch.stack([tokens[i : i + model_sizes.sequence + 1] for i in first]).to(device)
        loss = mean_loss(run(input_ids=rows[:, :-1]).logits, rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ends.append(torch.Event(device=device, enable_timing=True) if is_cuda else None)
        if is_cuda:
            ends[-1].record()
    if is_cuda:
        torch.cuda.synchronize()
    times = [a.elapsed_time(b) if is_cuda else 1.0 for a, b in zip(ends, ends[1:])]
    memory = torch.cuda.max_memory_allocated() if is_cuda else 0
    (Path(arguments["folder"]) / "peer.json").write_text(json.dumps({"step_ms": times, "memory": memory, "loss": loss.item()}))


def steps_of_peer(model, options, folder, compiled):
    path = folder / "peer.arguments.json"
    path.write_text(json.dumps({"folder": str(folder), "device": options.device, "steps": options.steps, "warm_up": options.warm_up,
                                "model": options.model, "rank": options.rank, "compile": compiled,
                                "sizes": {key: getattr(model, key) for key in ("layers", "sequence", "microbatch")}}))
    subprocess.run([sys.executable, __file__, "--peer", path], check=True, stdout=subprocess.DEVNULL,
                   env={"PYTORCH_ALLOC_CONF": "expandable_segments:True", **os.environ})
    result = json.loads((folder / "peer.json").read_text())
    return result["step_ms"], result["memory"], result["loss"]


def print_row(title, model, options, measured, own=None):
    """Returns the median."""
    steps, memory, loss = measured
    steps = steps[options.warm_up - 1 :]
    median, deciles = statistics.median(steps), statistics.quantiles(steps, n=10, method="inclusive")
    tokens = 1e3 * model.sequence * model.microbatch / median
    print(f"| {title} | {median:.1f} ({deciles[0]:.1f}..{deciles[-1]:.1f}) | {tokens:,.0f} | "
          f"{tokens * model.flop_per_token(is_frozen=True) / 1e12:.0f} | {memory / 2**30:.1f} | "
          f"{f'{median / own:.2f}' if own else ''} | {loss:.4f} |", flush=True)
    return median


def main():
    if "--peer" in sys.argv:
        return peer(json.loads(Path(sys.argv[-1]).read_text()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama3-8b")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--compile", default="layers,model", help="rows of the peer: of layers,model,none; empty: ours alone")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warm-up", type=int, default=8)
    parser.add_argument("--trace", type=Path, help="folder for a trace of three steps of ours")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, help="fewer than the model has, to try the script")
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    if MODELS[options.model].experts and options.compile:
        parser.error("the peer is built for dense models: give --compile '' for ours alone")
    model = MODELS[options.model]._replace(sequence=options.sequence, microbatch=options.sequences)
    if options.layers:
        model = model._replace(layers=options.layers)
    print(f"{options.model}, {model.sequence} x {model.microbatch}, adapters of rank {options.rank} for `{PATTERN}`; "
          f"{options.steps} steps, {options.warm_up} warm-up\n")
    print("| | step ms (p10..p90) | tokens/s | TFLOP/s | GiB allocated | times of ours | last loss |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = print_row("d9d", model, options, steps_of_ours(model, options, folder))
        for compiled in filter(None, options.compile.split(",")):
            title = {"none": "peft", "layers": "peft, each layer compiled", "model": "peft, the model compiled"}[compiled]
            print_row(title, model, options, steps_of_peer(model, options, folder, compiled), own)


main()
