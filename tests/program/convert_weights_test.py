"""examples/convert_weights on a folder that transformers saved: its own arithmetic of heads, and nothing lost."""

import subprocess
import tempfile
from pathlib import Path

import program_job
import torch
from program_job import SECONDS, ProgramTest, main
from safetensors.torch import load_file
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

HEADS, HIDDEN = 4, 24


class ConvertWeights(ProgramTest):
    def test_heads_are_separated_as_transformers_separates_them(self):
        torch.manual_seed(0)
        config = GPTNeoXConfig(vocab_size=40, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
                               intermediate_size=32)  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            source, target = Path(name) / "source", Path(name) / "target"
            GPTNeoXForCausalLM(config).save_pretrained(source)
            done = subprocess.run([program_job.PROGRAMS / "convert_weights", source, target], capture_output=True, text=True,
                                  timeout=SECONDS)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("0 tensors unused", done.stdout)
            expected = {}
            for key, value in load_file(source / "model.safetensors").items():
                key = key.replace("gpt_neox.", "model.")
                if "query_key_value" in key:  # as GPTNeoXAttention.forward: view(heads, 3 * size), then chunk(3)
                    parts = value.view(HEADS, 3 * HIDDEN // HEADS, -1).chunk(3, dim=1)
                    for letter, part in zip("qkv", parts, strict=True):
                        own = key.replace("attention.query_key_value", f"self_attn.{letter}_proj")
                        expected[own] = part.reshape(HIDDEN, *value.shape[1:])
                else:
                    expected[key.replace("attention.dense", "self_attn.o_proj")] = value
            made = load_file(target / "model.safetensors")
            self.assertEqual(made.keys(), expected.keys())
            for key, value in expected.items():
                self.assertTrue(torch.equal(made[key], value), key)
            again = subprocess.run([program_job.PROGRAMS / "convert_weights", source], capture_output=True, text=True)
            self.assertEqual(again.returncode, 2, again.stderr)
            self.assertIn("expected SOURCE and TARGET", again.stderr)


if __name__ == "__main__":
    main()
