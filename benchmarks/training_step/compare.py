"""A training step of an example program beside the same model in transformers, in one run.

usage: compare.py moe|dense [--steps N] [--threads N] [--programs FOLDER]

Both train from the same weights on the same tokens, so the losses must agree; a difference ends the run. They take turns:
while one works the other is stopped. Prints Markdown.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import transformers

REPOSITORY = Path(__file__).resolve().parents[2]
TURN = 3  # steps of one program before the other's turn
LEARNING_RATE = 1e-3
TOLERANCE = 2e-2  # of a loss, relative: fp32 differences after tens of steps


def peak_mib(process):
    return int(Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


class OurProgram:
    """The example program, stopped except in its turns. Step times are those that it logs."""

    def __init__(self, program, model, folder, *overrides):
        self.log = folder / "metrics.jsonl"
        self.log.unlink(missing_ok=True)
        os.mkfifo(self.log)
        everything = {
            "launch": {"device": "cpu", "num_threads": torch.get_num_threads()},
            "data.paths": [str(folder / "text")],
            "data.shuffle": False,
            "optimizer.lr": LEARNING_RATE,
            "lr_scheduler.scheduler": {
                "initial_multiplier": 1.0,
                "phases": [{"mode": "rest", "target_multiplier": 1.0, "curve": {"type": "linear"}}],
            },
            "trainer.logging.tracker": {"provider": "jsonl", "path": str(self.log)},
            "export_to": str(folder / "export"),
        }
        if model == "moe":  # which the peer does not have
            everything["model_provider.model.layer.router_auxiliary_loss_coefficient"] = 0
        arguments = [f"{key}={json.dumps(value)}" for key, value in everything.items()]
        config = REPOSITORY / f"examples/qwen3_{model}/pretrain/pretrain.json"
        self.started = time.perf_counter()
        self.process = subprocess.Popen([program, config, *arguments, *overrides], cwd=REPOSITORY,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.lines = open(self.log)

    def next_step(self):
        line = self.lines.readline()
        if not line:
            raise RuntimeError(f"the program ended: exit code {self.process.wait()}")
        return json.loads(line)

    def turn(self, num_steps):
        """Logged steps. The second was interrupted by the other's turn: a line comes when the step after it has ended."""
        self.process.send_signal(signal.SIGCONT)
        steps = [self.next_step() for _ in range(1 + num_steps)]
        self.process.send_signal(signal.SIGSTOP)
        return steps

    def processor_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system

    def end(self):
        self.process.kill()
        self.process.wait()
        self.lines.close()


class Transformers:
    """The peer: eager PyTorch, with the optimiser and the clipping of its documentation."""

    def __init__(self, config, export, text, fused):
        self.sequence_length = config["data"]["sequence_length"]
        self.batch_size = config["data"]["global_batch_size"]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32).train()
        settings = config["optimizer"]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, betas=settings["betas"],
                                           weight_decay=settings["weight_decay"], fused=fused)
        self.max_norm = config["trainer"]["gradient_clipping"]["max_norm"]
        self.is_moe = hasattr(self.model.config, "num_experts")
        self.step_index = 0

    def batch(self):
        length, first = self.sequence_length, self.step_index * self.batch_size
        rows = [self.tokens[i * length : i * length + length + 1] for i in range(first, first + self.batch_size)]
        rows = torch.stack(rows)
        return rows[:, :-1], rows[:, 1:]

    def step(self):
        """Loss, seconds."""
        start = time.perf_counter()
        inputs, labels = self.batch()
        self.optimizer.zero_grad(set_to_none=True)
        options = {"output_router_logits": True} if self.is_moe else {}
        output = self.model(inputs, use_cache=False, **options)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
        total = loss + self.model.config.router_aux_loss_coef * output.aux_loss if self.is_moe else loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        self.step_index += 1
        return total.item(), time.perf_counter() - start


def start_up_seconds(program, model, folder):
    """Process start to the end of the first step, and the export of the untrained model."""
    ours = OurProgram(program, model, folder, "trainer.schedule.total_steps=1", "optimizer.lr=0")
    ours.next_step()
    seconds = time.perf_counter() - ours.started
    ours.process.wait()
    ours.end()
    return seconds


def compare_steps(program, model, folder, num_steps, fused):
    """Seconds of each step of ours and of theirs; processor seconds a step of both; peak memory of ours in MiB."""
    text = (folder / "text").read_bytes()
    config = json.loads((REPOSITORY / f"examples/qwen3_{model}/pretrain/pretrain.json").read_text())
    peer = Transformers(config, folder / "export", text, fused)
    ours = OurProgram(program, model, folder, "trainer.schedule.total_steps=1000000",
                      f"trainer.model_stage_factory.source_checkpoint={folder / 'export'}")
    losses, seconds, processor = [[], []], [[], []], [[], []]
    try:
        while len(seconds[0]) < num_steps:
            before = ours.processor_seconds()
            steps = ours.turn(TURN)
            processor[0].append((ours.processor_seconds() - before) / len(steps))
            losses[0] += [step["loss"] for step in steps]
            seconds[0] += [step["step_seconds"] for index, step in enumerate(steps) if index != 1]
            before = time.process_time()
            theirs = [peer.step() for _ in steps]
            processor[1].append((time.process_time() - before) / len(theirs))
            losses[1] += [loss for loss, _ in theirs]
            seconds[1] += [took for index, (_, took) in enumerate(theirs) if index != 1]
        memory = peak_mib(ours.process.pid)
    finally:
        ours.end()
    for step, (mine, other) in enumerate(zip(*losses)):
        if abs(mine - other) > TOLERANCE * abs(other):
            raise RuntimeError(f"step {step}: loss {mine} here, {other} in transformers")
    return seconds, processor, memory


def write_text(folder):
    headers = sorted((REPOSITORY / ".venv").glob("lib/python3*/site-packages/torch/include/ATen/core/*.h"))
    (folder / "text").write_bytes(b"".join(path.read_bytes() for path in headers))


def milliseconds(seconds):
    """Median and quartiles."""
    low, median, high = (1e3 * quartile for quartile in statistics.quantiles(seconds, n=4))
    return f"{median:.0f} ({low:.0f}..{high:.0f})"


def cpu_model():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["moe", "dense"])
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--programs", type=Path, default=REPOSITORY / "build/release/bin")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    program = options.programs / f"qwen3_{options.model}_pretrain"
    print(f"{options.model}: {cpu_model()}, {os.cpu_count()} cores, {options.threads} threads; torch {torch.__version__}, "
          f"transformers {transformers.__version__}\n")
    print("| AdamW of the peer | ours ms (quartiles) | transformers ms (quartiles) | median of ratios | processor ms, both |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        starts = [start_up_seconds(program, options.model, folder) for _ in range(5)]
        for fused in (False, True):
            (ours, theirs), processor, memory = compare_steps(program, options.model, folder, options.steps, fused)
            ratio = statistics.median(a / b for a, b in zip(ours, theirs))
            both = " : ".join(f"{1e3 * statistics.median(seconds):.0f}" for seconds in processor)
            print(f"| {'fused' if fused else 'default'} | {milliseconds(ours)} | {milliseconds(theirs)} | {ratio:.2f} | "
                  f"{both} |", flush=True)
    print(f"\nStart to the end of the first step: {statistics.median(starts):.2f} s "
          f"({min(starts):.2f}..{max(starts):.2f}). Peak memory: {memory:.0f} MiB, transformers "
          f"{peak_mib('self'):.0f} MiB.\n")


if __name__ == "__main__":
    main()
