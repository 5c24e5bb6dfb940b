"""Conversations a second with their masks, by a template that no family renders natively, beside transformers.

    .venv/bin/python benchmarks/tokenizer/chats.py [--rows N] [--rounds N] [--template qwen3_training] [--programs DIR]

Both have Qwen's tokenizer and one of trl's templates that mark what the assistant says. Ours is d9d_tokenize as a whole, with
the start of the program and of its Jinja process; transformers runs apply_chat_template with return_assistant_tokens_mask for
each conversation, after one that does not count. They take turns, and must find the same ids and masks.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tokenizer"))

import numpy as np  # noqa: E402
import oracle_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

PACKAGES = Path(sysconfig.get_paths()["purelib"])
TIKTOKEN = PACKAGES / "dashscope/resources/qwen.tiktoken"
TEMPLATES = PACKAGES / "trl/chat_templates"
WORDS = "the a model of tensors learns what is said here , and 17 more words than anybody needs \n\n λ 日本 🙂".split(" ")


def conversations(count: int) -> list[list[dict]]:
    numbers = random.Random(0)

    def text(most: int) -> str:
        return " ".join(numbers.choices(WORDS, k=numbers.randint(5, most)))

    chats = []
    for _ in range(count):
        chat = [{"role": "system", "content": text(30)}] if numbers.random() < 0.3 else []
        for _ in range(numbers.randint(1, 4)):
            chat += [{"role": "user", "content": text(60)}, {"role": "assistant", "content": text(120)}]
        chats.append(chat)
    return chats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--template", default="qwen3_training")
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    arguments = parser.parse_args()
    chats = conversations(arguments.rows)
    template = (TEMPLATES / f"{arguments.template}.jinja").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tokenizer.json").write_text(oracle_tokenizers.qwen(TIKTOKEN))
        (folder / "chat_template.jinja").write_text(template)
        (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template)
        seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
        options = {"return_dict": True, "return_assistant_tokens_mask": True}
        tokenizer.apply_chat_template(chats[0], **options)
        for number in range(arguments.rounds):
            target = folder / str(number)
            start = time.perf_counter()
            subprocess.run([arguments.programs / "d9d_tokenize", target, folder / "chats.jsonl", "--tokenizer", folder / "tokenizer.json",
                            "--messages-column", "messages"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
            seconds["ours"].append(time.perf_counter() - start)
            start = time.perf_counter()
            theirs = [tokenizer.apply_chat_template(chat, **options) for chat in chats]
            seconds["transformers"].append(time.perf_counter() - start)
        ids = [token for chat in theirs for token in chat["input_ids"]]
        assert np.fromfile(target / "tokens.bin", "<u4").tolist() == ids, "other ids"
        ranges = np.fromfile(target / "targets.bin", "<i4").reshape(-1, 2)
        num_learned = sum(sum(chat["assistant_masks"]) for chat in theirs)
        assert (ranges[:, 1] - ranges[:, 0]).sum() == num_learned, "other masks"
    print(f"{arguments.rows} conversations, {len(ids)} tokens, {num_learned} learned, template {arguments.template}, {os.cpu_count()} cores\n")
    print("| what | conversations/s, median | quartiles |\n|---|---|---|")
    for what, times in seconds.items():
        low, median, high = (arguments.rows / t for t in reversed(statistics.quantiles(times, n=4)))
        print(f"| {what} | {median:,.0f} | {low:,.0f} .. {high:,.0f} |")
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["transformers"], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"\nours over transformers: {median:.2f} ({low:.2f} .. {high:.2f})")


main()
