"""d9d_convert beside transformers and torch: what it makes of folders that transformers saved, and back.

convert_test.py PROGRAM
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

REPOSITORY = Path(__file__).resolve().parents[2]
ORACLE = REPOSITORY / "tests/models/huggingface/huggingface_oracle.py"
PROGRAM = str(Path(sys.argv.pop()).resolve())
SPLITS = "--vocabulary=regular=50,special=14"  # of the oracle's embedding


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: x for path in sorted(folder.glob("*.safetensors")) for name, x in load_file(path).items()}


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        subprocess.run([sys.executable, ORACLE, "save", cls.root], check=True, capture_output=True)
        cls.cases = sorted(path.name for path in cls.root.iterdir() if path.is_dir())
        assert len(cls.cases) == 10, cls.cases

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def run_program(self, *arguments: object, code: int = 0) -> str:
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def convert(self, source: Path, *flags: str, name: str) -> Path:
        target = self.root / "made" / name
        shutil.rmtree(target, ignore_errors=True)
        self.run_program(source, target, *flags)
        return target

    def assert_same(self, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], case: str) -> None:
        self.assertEqual(found.keys(), expected.keys(), case)
        for name, x in expected.items():
            self.assertEqual(found[name].dtype, x.dtype, name)
            self.assertTrue(torch.equal(found[name].flatten().view(torch.uint8), x.contiguous().flatten().view(torch.uint8)),
                            f"{case}: {name}")  # fmt: skip

    def test_packed_qkv_and_back_are_the_same_bytes_with_1_and_8_workers(self) -> None:
        for case in self.cases:
            source = self.root / case
            sharding = "--max-shard-size=5KB" if case.endswith("_sharded") else "--max-shard-size=1GB"
            cut = self.convert(source, sharding, name=f"{case}_cut")  # transformers fills shards in another order
            packed = [self.convert(source, "--qkv=packed", sharding, f"--workers={n}", name=f"{case}_{n}") for n in (1, 8)]
            self.assertEqual(content(packed[0]), content(packed[1]), case)
            expected = tensors(source)
            for name in [name for name in expected if name.endswith("self_attn.q_proj.weight")]:
                parts = [expected.pop(name.replace("q_proj", f"{x}_proj")) for x in "qkv"]
                expected[name.replace("q_proj", "qkv_proj")] = torch.cat(parts)
            self.assert_same(tensors(packed[0]), expected, case)
            one, eight = (self.convert(packed[0], "--qkv=separate", sharding, f"--workers={n}", name=f"{case}_back{n}")
                          for n in (1, 8))  # fmt: skip
            self.assertEqual(content(one), content(eight), case)
            self.assert_same(tensors(one), tensors(source), case)
            if case != "moe_causal_lm_sharded":  # there a shard ends within q, k and v, which the inverse writes together
                self.assertEqual(content(one), content(cut), case)
            if not case.endswith(("_sharded", "_fused")):  # the oracle writes the fused one without transformers
                self.assertEqual(content(one), content(source), case)

    def test_names_of_d9d_and_back(self) -> None:
        for case in self.cases:
            own = self.convert(self.root / case, "--to=d9d", SPLITS, "--workers=3", name=f"{case}_own")
            self.assert_same(tensors(own), load_file(self.root / f"{case}.ours.safetensors"), case)
            experts = ["--experts=fused"] if case.endswith("_fused") else []
            back = self.convert(own, "--to=huggingface", SPLITS, *experts, name=f"{case}_hf")
            self.assert_same(tensors(back), tensors(self.root / case), case)
            self.assertEqual((back / "config.json").read_bytes(), (self.root / case / "config.json").read_bytes())

    def test_other_families(self) -> None:
        torch.manual_seed(3)
        sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)  # fmt: skip
        for name in ("Llama", "Qwen2"):
            config = getattr(transformers, f"{name}Config")(**sizes)
            model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter)
            source = self.root / "made" / name
            model.save_pretrained(source)
            own = self.convert(source, "--to=d9d", SPLITS, name=f"{name}_own")
            self.assertIn("model.embed_tokens.token_embedding.special.weight", tensors(own))
            back = self.convert(own, "--to=huggingface", SPLITS, name=f"{name}_back")
            self.assertEqual(content(back), content(source))
            packed = self.convert(source, "--qkv=packed", name=f"{name}_packed")
            if name == "Qwen2":
                biases = [tensors(source)[f"model.layers.1.self_attn.{x}_proj.bias"] for x in "qkv"]
                self.assertTrue(torch.equal(tensors(packed)["model.layers.1.self_attn.qkv_proj.bias"], torch.cat(biases)))
            self.assertEqual(len([x for x in tensors(packed) if "q_proj" in x]), 0)
            self.assertEqual(content(self.convert(packed, "--qkv=separate", name=f"{name}_separate")), content(source))

    def test_formats_of_experts(self) -> None:
        fused, listed = self.root / "moe_causal_lm_fused", self.convert(
            self.root / "moe_causal_lm_fused", "--experts=module_list", "--workers=4", name="listed")  # fmt: skip
        self.assertTrue(any(re.search(r"experts\.3\.up_proj\.weight$", name) for name in tensors(listed)))
        again = self.convert(listed, "--experts=fused", name="fused")
        self.assert_same(tensors(again), tensors(fused), "experts")

    def test_a_tied_head_is_not_written_when_formats_change(self) -> None:
        source = self.root / "dense_causal_lm_tied"
        again = self.convert(source, "--experts=module_list", name="tied")
        self.assert_same(tensors(again), tensors(source), "tied")

    def test_dtype(self) -> None:
        source = self.root / "moe_causal_lm"
        wide = self.convert(source, "--dtype=float32", name="wide")
        self.assert_same(tensors(wide), {name: x.float() for name, x in tensors(source).items()}, "float32")
        config = json.loads((wide / "config.json").read_text())
        self.assertEqual(config.get("dtype", config.get("torch_dtype")), "float32")
        half = self.convert(wide, "--dtype", "float16", name="half")
        self.assert_same(tensors(half), {name: x.half() for name, x in tensors(wide).items()}, "float16")

    def test_any_model_is_renamed_cut_and_cast(self) -> None:
        source = self.root / "any_model"
        source.mkdir()
        state = {"a.0.w": torch.randn(5, 3), "a.1.w": torch.randn(2), "n": torch.arange(3),
                 "s.w": torch.randn(2).to(torch.float8_e4m3fn)}  # fmt: skip
        save_file(state, source / "model.safetensors", {"format": "pt"})
        made = self.convert(source, r"--rename=^a\.(\d+)=>layers.$1", "--rename=w$=>weight", "--dtype=bfloat16",
                            "--max-shard-size=10", name="any")  # fmt: skip
        expected = {"layers.0.weight": state["a.0.w"].bfloat16(), "layers.1.weight": state["a.1.w"].bfloat16(),
                    "n": state["n"], "s.weight": state["s.w"]}  # fmt: skip
        self.assert_same(tensors(made), expected, "any")
        self.assertEqual(len(list(made.glob("model-*-of-00004.safetensors"))), 4)

    def test_files_beside_the_weights_are_copied(self) -> None:
        source = self.root / "beside"
        shutil.copytree(self.root / "dense_causal_lm", source)
        beside = {"qwen.tiktoken": b"IQ== 0\n", "vocab.bpe": b"a b\n", "tokenizer.model.v3": b"\x00\xff", "NOTICE": b"x",
                  "modeling.py": b"pass\n"}  # fmt: skip
        for name, text in {**beside, "pytorch_model.bin": b"weights", ".gitattributes": b"x"}.items():
            (source / name).write_bytes(text)
        made = content(self.convert(source, "--qkv=packed", name="beside"))
        self.assertEqual({name: made.get(name) for name in beside}, beside)
        self.assertFalse({"pytorch_model.bin", ".gitattributes"} & made.keys())

    def test_names_of_0_16(self) -> None:
        for case, present, former in (("dense_causal_lm", "head.lm_head.", "lm_head.lm_head."),
                                      ("moe_classification", "head.score.", "cls_head.score.")):  # fmt: skip
            ours = load_file(self.root / f"{case}.ours.safetensors")
            source = self.root / f"{case}_0_16"
            source.mkdir()
            shutil.copy(self.root / case / "config.json", source)
            save_file({name.replace(present, former): x for name, x in ours.items()}, source / "model.safetensors")
            self.assert_same(tensors(self.convert(source, "--to=d9d", SPLITS, name="new_names")), ours, case)
            back = self.convert(source, "--to=huggingface", SPLITS, name="from_0_16")
            self.assert_same(tensors(back), tensors(self.root / case), case)

    def test_dry_run(self) -> None:
        text = self.run_program(self.root / "moe_causal_lm", "--to=d9d", SPLITS, "--dry-run")
        self.assertIn("model.layers.*.mlp.experts.*.down_proj.weight  BFloat16 [16, 12]  384 B  (4 of these)\n"
                      "  -> model.layers.*.mlp.grouped_experts.down_proj.weight  BFloat16 [4, 12, 16]  1.50 KiB", text)  # fmt: skip
        self.assertNotIn("missing", text)
        source = self.root / "lacking"
        shutil.copytree(self.root / "dense_causal_lm", source)
        state = tensors(source)
        del state["lm_head.weight"]
        state["extra"] = torch.ones(2)
        save_file(state, source / "model.safetensors")
        text = self.run_program(source, "--to=d9d", "--dry-run", code=1)
        self.assertIn("missing: 1 tensor\n  lm_head.weight\nnot made without them:\n  head.lm_head.regular.weight\n", text)
        self.assertIn("unused: 1 tensor\n  extra  Float [2]", text)
        text = self.run_program(source, self.root / "never", "--to=d9d", code=1)
        self.assertIn("'lm_head.weight'", text)
        self.assertFalse((self.root / "never").exists())

    def test_the_command_lines_of_the_page_do_what_it_says(self) -> None:
        page = (REPOSITORY / "docs/model_state.md").read_text()
        lines = [shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("d9d_convert ")]
        self.assertEqual(len(lines), 6, lines)
        lines = [words for words in lines if "checkpoints" not in words[1]]  # tests/program: exports_test.py, adapters_test.py
        self.assertEqual(len(lines), 4, lines)
        here = self.root / "page"
        shutil.copytree(self.root / "dense_causal_lm", here / "Qwen3-0.6B")
        shutil.copytree(self.root / "moe_causal_lm", here / "Qwen3-30B-A3B")
        (here / "mine").mkdir()
        save_file({"backbone.w": torch.ones(2), "head": torch.ones(1)}, here / "mine/model.safetensors")
        for words in lines:
            splits = [SPLITS] if "d9d" in words else []  # the oracle's embedding has two
            done = subprocess.run([PROGRAM, *words[1:], *splits], cwd=here, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        self.assertIn("-> model.embed_tokens.", done.stdout)  # of the dry run, which the page shows last
        self.assertEqual({path.name for path in here.iterdir()} - {"Qwen3-0.6B", "Qwen3-30B-A3B", "mine"},
                         {"packed", "own", "theirs"})  # fmt: skip
        self.assertTrue(any(name.endswith("qkv_proj.weight") for name in tensors(here / "packed")))
        own = load_file(self.root / "moe_causal_lm.ours.safetensors")
        self.assert_same(tensors(here / "own"), {name: x.bfloat16() for name, x in own.items()}, "own")
        self.assertEqual(set(tensors(here / "theirs")), {"model.w", "head"})

    def test_refusals(self) -> None:
        source, never = self.root / "dense_causal_lm", self.root / "never"
        refusals = (
            ([source], 2, "no TARGET"),
            ([source, never, "--workers=0"], 2, "a number of workers, got '0'"),
            ([source, never, "--shards=2"], 2, "'--shards=2'"),
            ([source, never, "--max-shard-size=4XB"], 2, "'4XB'"),
            ([source, never, "--dtype=int8"], 1, "bfloat16"),
            ([source, never, "--rename=("], 2, "REGEX=>TEXT"),
            ([source, never, "--rename=(=>x"], 1, "regular expression"),
            ([source, never, "--rename=^.+=>same"], 1, "'same'"),
            ([source, never, "--to=d9d", "--experts=fused"], 2, "--experts"),
            ([source, source], 2, "another folder"),
            ([source, self.root / "dense_classification"], 2, "--overwrite"),
            ([self.root, never], 1, str(self.root)),
            ([source, never, "--to=d9d", "--vocabulary=regular=50"], 1, "'lm_head.weight'"),
        )
        for arguments, code, part in refusals:
            self.assertIn(part, self.run_program(*arguments, code=code))
        self.assertFalse(never.exists())

        broken = self.root / "broken"
        shutil.copytree(source, broken)
        file = broken / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        self.assertIn(str(file), self.run_program(broken, never, code=1))
        (broken / "config.json").write_text('{"model_type": "gpt2"}')
        shutil.copy(source / "model.safetensors", broken)
        self.assertIn("model_type", self.run_program(broken, never, "--to=d9d", code=1))
        config = broken / "config.json"
        for text in ('{"rope_theta": 1e400}', '{"x": ' + "[" * 100000 + "]" * 100000 + "}"):
            config.write_text(text)
            self.assertIn(str(config), self.run_program(broken, never, "--dtype=float32", code=1))
        save_file({}, broken / "model.safetensors")
        self.assertIn("at least one tensor", self.run_program(broken, never, code=1))
        save_file({"x" * 400000: torch.ones(1)}, broken / "model.safetensors")
        self.assertIn("at most 1024 characters", self.run_program(broken, never, "--rename=(x|y)+z=>k", code=1))
        own = self.convert(source, "--to=d9d", SPLITS, name="two_splits")
        self.assertIn("regular=50,special=14", self.run_program(own, never, "--to=huggingface", code=2))
        for wrong in ("regular=50", "regular=14,special=50", "regular=50,special=14,more=1", "regular=50,regular=50,special=14"):
            text = self.run_program(own, never, "--to=huggingface", f"--vocabulary={wrong}", code=2)
            self.assertIn("the splits of the folder, regular=50,special=14, got", text)
        text = self.run_program(source, never, "--to=d9d", "--rename=^lm_head=>old_head", code=2)
        self.assertIn("'lm_head.weight', which the model needs, got it renamed to 'old_head.weight'", text)
        self.assertFalse(never.exists())
        self.assertIn("--dry-run", self.run_program("--help"))


if __name__ == "__main__":
    unittest.main()
