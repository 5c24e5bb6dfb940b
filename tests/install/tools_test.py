"""Every installed program starts from an empty environment and does its work: it finds the libraries that it needs.

tools_test.py PREFIX
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import torch
import transformers
from safetensors.torch import load_file, save_file

PREFIX = Path(sys.argv.pop()).resolve()


def byte_tokenizer():
    """A token for each byte, as byte-level models write them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {characters[byte]: byte for byte in range(256)}, "merges": []}}  # fmt: skip


class InstalledTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_tool(self, name, *arguments):
        done = subprocess.run([PREFIX / "bin" / name, *map(str, arguments)], env={}, cwd=self.folder, capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        return done.stdout

    def test_every_program_is_tried_here(self):
        tried = {"d9d_convert", "d9d_generate", "d9d_info", "d9d_lr_plot", "d9d_pipeline_plot", "d9d_plan", "d9d_tokenize",
                 "plot_metrics"}
        self.assertEqual({path.name for path in (PREFIX / "bin").iterdir()}, tried)

    def test_d9d_info(self):
        self.assertIn("LibTorch", self.run_tool("d9d_info"))

    def test_d9d_lr_plot(self):
        (self.folder / "job.json").write_text('{"lr_scheduler": {"name": "cosine"}}')
        self.assertIn("cosine, 10 steps", self.run_tool("d9d_lr_plot", "job.json", "--steps", "10"))

    def test_d9d_plan_with_an_installed_preset(self):
        preset = PREFIX / "share/d9d/presets/qwen3_dense/0.6B.json"
        self.assertIn("rank 0", self.run_tool("d9d_plan", preset, "--microbatch", "1x64"))

    def test_d9d_tokenize_reads_parquet(self):
        """Which needs libd9d_arrow.so, of the prefix, and Arrow, of the wheel."""
        pa.parquet.write_table(pa.table({"text": ["ab", "c"]}), self.folder / "a.parquet")
        (self.folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
        self.run_tool("d9d_tokenize", "out", "a.parquet", "--tokenizer", "tokenizer.json")
        self.assertEqual(self.folder.joinpath("out/tokens.bin").read_bytes(), b"a\0b\0c\0")

    def test_d9d_convert(self):
        source = self.folder / "source"
        source.mkdir()
        save_file({"a": torch.arange(4.0)}, source / "model.safetensors")
        self.run_tool("d9d_convert", source, "target", "--rename", "a=>b")
        self.assertTrue(torch.equal(load_file(self.folder / "target/model.safetensors")["b"], torch.arange(4.0)))

    def test_d9d_generate(self):
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
            vocab_size=256, max_position_embeddings=32, eos_token_id=None))  # fmt: skip
        model.save_pretrained(self.folder / "model")
        (self.folder / "model/generation_config.json").unlink(missing_ok=True)
        (row,) = self.run_tool("d9d_generate", "model", "ab", "--num-tokens", "4", "--json", "--device", "cpu").splitlines()
        prompt = torch.tensor([list(b"ab")])
        generated = model.eval().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False,
                                          eos_token_id=None, pad_token_id=0)  # fmt: skip
        self.assertEqual(json.loads(row)["ids"], generated[0, 2:].tolist())

    def test_d9d_pipeline_plot(self):
        self.run_tool("d9d_pipeline_plot", "1f1b", "--svg", "picture.svg")
        self.assertIn("<svg", (self.folder / "picture.svg").read_text())

    def test_plot_metrics(self):
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "loss": 9.0 - i}) + "\n" for i in range(5)))
        self.run_tool("plot_metrics", "metrics.jsonl", "picture.svg")
        self.assertIn("<svg", (self.folder / "picture.svg").read_text())


if __name__ == "__main__":
    unittest.main()
