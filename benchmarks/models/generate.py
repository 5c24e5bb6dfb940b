"""Tokens a second of greedy generation with a cache: ours beside transformers' generate, on the same weights and prompts.

    .venv/bin/python benchmarks/models/generate.py [--device cuda] [--model qwen3-0.6b] [--prompts 8] [--tokens 128]

Both programs stay and take turns, and the one that waits is stopped: a round runs each once, after one round that does not
count. The ratio is taken within a round; medians over rounds are printed with the first and third quartile. On a GPU
transformers runs in eager mode and, with --compile, with its static cache, whose forward it compiles. Weights are random; the
last token of every prompt is compared.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
DENSE = {
    "tiny": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=64, vocab_size=256),
    "small": dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
                  head_dim=64, vocab_size=8192),
    "qwen3-0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True),
    "qwen3-1.7b": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
                       num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True),
}  # fmt: skip
EXPERTS = {
    "moe-small": dict(hidden_size=512, intermediate_size=1536, moe_intermediate_size=256, num_experts=16,
                      num_experts_per_tok=4, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                      vocab_size=8192),
    "moe-7b": dict(hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_experts=64, num_experts_per_tok=8,
                   num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936),
}  # fmt: skip


def build(name: str, dtype: torch.dtype, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    positions = dict(max_position_embeddings=4096)
    with torch.device(device):
        torch.set_default_dtype(dtype)
        if name in DENSE:
            model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**DENSE[name], **positions))
        else:
            model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**EXPERTS[name], **positions))
        torch.set_default_dtype(torch.float32)
    return model.eval()


def transformers_server(arguments: argparse.Namespace) -> None:
    """For each line (eager or static) it generates once, and prints the seconds and the last token of each prompt."""
    torch.set_num_threads(arguments.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.server, dtype=getattr(torch, arguments.dtype))
    model = model.to(arguments.device).eval()
    rows = [[(i * 131 + t * 17) % 250 for t in range(arguments.prompt_tokens)] for i in range(arguments.prompts)]
    ids = torch.tensor(rows, device=arguments.device)
    for line in sys.stdin:
        options = {"cache_implementation": "static"} if line.strip() == "static" else {}
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=arguments.tokens,
                                 min_new_tokens=arguments.tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
                                 **options)  # fmt: skip
        last = out[:, -1].tolist()
        print(time.perf_counter() - start, *last, flush=True)


class Server:
    def __init__(self, command: list):
        environment = os.environ | {"OMP_WAIT_POLICY": "active"}  # of both: threads wait for the next operator on their cores
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)  # fmt: skip

    def run(self, what: str) -> tuple[float, list[int]]:
        """The process is stopped between its turns, so that no thread of it waits for work on a core."""
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        seconds, *last = self.process.stdout.readline().split()
        self.process.send_signal(signal.SIGSTOP)
        return float(seconds), list(map(int, last))

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*DENSE, *EXPERTS], default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="also transformers with a static cache, compiled")
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--server", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32")
    if arguments.server:
        return transformers_server(arguments)
    with tempfile.TemporaryDirectory() as folder:
        build(arguments.model, getattr(torch, arguments.dtype), arguments.device).save_pretrained(folder)
        measure(arguments, folder)


def measure(arguments: argparse.Namespace, folder: str) -> None:
    shape = [arguments.prompts, arguments.prompt_tokens, arguments.tokens]
    ours = Server([arguments.programs / "models_benchmark", folder, arguments.device, arguments.dtype, *shape])
    names = ("prompts", "prompt_tokens", "tokens", "threads", "dtype", "device")
    flags = [part for name in names for part in (f"--{name.replace('_', '-')}", getattr(arguments, name))]
    peer = Server([sys.executable, __file__, "--server", folder, *flags])
    runs = {"ours": (ours, ""), "transformers": (peer, "eager")}
    if arguments.compile:
        runs["transformers, static cache, compiled"] = (peer, "static")
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    last: dict[str, list[int]] = {}
    for number in range(arguments.rounds + 1):
        for name, (server, what) in runs.items():
            elapsed, last[name] = server.run(what)
            if number > 0:
                seconds[name].append(elapsed)
    ours.end()
    peer.end()
    num_tokens = arguments.prompts * arguments.tokens
    print(f"{arguments.model}, {arguments.dtype}, {arguments.device}: {json.dumps(dict(zip(names, shape)))}\n")
    print("| what | tokens/s, median | quartiles | same last tokens |\n|---|---|---|---|")
    for name, times in seconds.items():
        low, median, high = (num_tokens / t for t in reversed(statistics.quantiles(times, n=4)))
        same = sum(a == b for a, b in zip(last["ours"], last[name], strict=True))
        print(f"| {name} | {median:,.0f} | {low:,.0f} .. {high:,.0f} | {same} of {arguments.prompts} |")
    print("\n| ours over | median | quartiles |\n|---|---|---|")
    for name, times in seconds.items():
        if name != "ours":
            low, median, high = statistics.quantiles([b / a for a, b in zip(seconds["ours"], times, strict=True)], n=4)
            print(f"| {name} | {median:.2f} | {low:.2f} .. {high:.2f} |")


main()
