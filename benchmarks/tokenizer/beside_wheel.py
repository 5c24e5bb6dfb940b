"""Tokens a second of processor time beside the tokenizers wheel: Qwen's vocabulary, the same mixed text, one thread each.

    .venv/bin/python benchmarks/tokenizer/beside_wheel.py [--megabytes N] [--rounds N] [--program FILE]

They take turns; read the ratio. The wheel's encode_batch_fast makes ids without offsets, its fastest way, and keeps its
cache of words between rounds; the program starts anew each time. Both must find the same number of tokens.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ROOT = Path(__file__).resolve().parents[2]
TIKTOKEN = Path(sysconfig.get_paths()["purelib"]) / "dashscope/resources/qwen.tiktoken"
sys.path.insert(0, str(ROOT / "tests/tokenizer"))

import corpus  # noqa: E402
import oracle_tokenizers  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--program", default=ROOT / "build/release/bin/tokenizer_benchmark")
    arguments = parser.parse_args()
    pieces = corpus.texts(int(arguments.megabytes * 1e6))
    texts = [text for _, text in pieces]
    print(f"{len(texts)} texts, {sum(len(text.encode()) for text in texts)} bytes, sha256 {corpus.content_hash(pieces)}")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file, rows = Path(folder) / "tokenizer.json", Path(folder) / "rows.jsonl"
        tokenizer_file.write_text(oracle_tokenizers.qwen(TIKTOKEN))
        rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        wheel = Tokenizer.from_file(str(tokenizer_file))
        rates: dict[str, list[float]] = {"wheel": [], "encode": [], "stream": []}
        for _ in range(arguments.rounds):
            start = time.process_time()
            num_tokens = sum(len(encoding.ids) for encoding in wheel.encode_batch_fast(texts))
            rates["wheel"].append(num_tokens / (time.process_time() - start))
            done = subprocess.run([arguments.program, tokenizer_file, rows], check=True, capture_output=True, text=True)
            ours = json.loads(done.stdout)
            assert ours["encode"]["num_tokens"] == num_tokens, (ours, num_tokens)
            for name in ("encode", "stream"):
                rates[name].append(ours[name]["num_tokens"] / ours[name]["seconds"])
    for name, values in rates.items():
        ratios = [value / wheel for value, wheel in zip(values, rates["wheel"], strict=True)]
        print(f"{name}: {statistics.median(values):.3g} tokens/s ({min(values):.3g} to {max(values):.3g}), "
              f"{statistics.median(ratios):.2f} of the wheel")  # fmt: skip


if __name__ == "__main__":
    main()
