"""d9d_generate beside transformers: texts after texts, chats and ids, and what it refuses.

generate_test.py PROGRAM
"""

import copy
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PROGRAM = sys.argv.pop()
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")  # fmt: skip
TEXTS = ["the quick brown fox", "日本語の", "jumps over the lazy dog and over the fox", "a"]


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        trained = Tokenizer(models.BPE())
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
        trained.train_from_iterator(TEXTS * 4, trainer)
        cls.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained, chat_template=CHATML, clean_up_tokenization_spaces=False)  # fmt: skip
        transformers.logging.set_verbosity_error()
        torch.manual_seed(1)
        cls.model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            vocab_size=len(cls.tokenizer), max_position_embeddings=128, eos_token_id=None)).eval()  # fmt: skip
        for parameter in cls.model.parameters():
            torch.nn.init.normal_(parameter, 0.8 if parameter.ndim == 1 else 0.0, 0.4)
        cls.model.generation_config.eos_token_id = None
        cls.model.save_pretrained(cls.root / "model")
        cls.tokenizer.save_pretrained(cls.root / "model")
        (cls.root / "model/generation_config.json").unlink(missing_ok=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def run_program(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def generate(self, *arguments: object) -> list[dict]:
        output, _ = self.run_program(self.root / "model", *arguments, "--num-tokens", 20, "--json", "--device", "cpu")
        return [json.loads(line) for line in output.splitlines()]

    def expected(self, ids: torch.Tensor, stop: int | None = None) -> list[int]:
        with torch.no_grad():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
                                      eos_token_id=stop, pad_token_id=0)  # fmt: skip
        return out[0, ids.shape[1] :].tolist()

    def chat_ids(self, text: str) -> torch.Tensor:
        return self.tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                                  return_tensors="pt", return_dict=True)["input_ids"]  # fmt: skip

    def test_texts_are_continued(self) -> None:
        for batch in (1, 3, 16):
            rows = self.generate(*TEXTS, "--batch", batch)
            for text, row in zip(TEXTS, rows, strict=True):
                ids = self.expected(self.tokenizer(text, return_tensors="pt")["input_ids"])
                self.assertEqual(row["ids"], ids)
                self.assertEqual(row["text"], self.tokenizer.decode(ids, skip_special_tokens=True))
                self.assertEqual(len(row["log_probs"]), len(ids))
        output, error = self.run_program(self.root / "model", TEXTS[0], "--num-tokens", 20, "--device", "cpu")
        self.assertEqual(output, TEXTS[0] + rows[0]["text"] + "\n")
        self.assertIn("20 tokens of 1 prompts", error)

    def test_users_are_answered_up_to_the_end_of_an_answer(self) -> None:
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        for text, row in zip(TEXTS, self.generate("--chat", *TEXTS), strict=True):
            self.assertEqual(row["ids"], self.expected(self.chat_ids(text), end))

    def test_rows_of_a_file_are_prompts(self) -> None:
        file = self.root / "prompts.jsonl"
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        ids = [5, 6, 7]
        rows = [{"prompt": TEXTS[0]}, {"messages": messages}, {"ids": ids}]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
        text, answer, more = self.generate("--prompts", file)
        chat = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.assertEqual(text["ids"], self.expected(self.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"], end))
        self.assertEqual(answer["ids"], self.expected(chat["input_ids"], end))
        self.assertEqual(more["ids"], self.expected(torch.tensor([ids]), end))

    def test_stop_tokens_end_text(self) -> None:
        (row,) = self.generate(TEXTS[0])
        token = self.tokenizer.convert_ids_to_tokens(row["ids"][4])
        (stopped,) = self.generate(TEXTS[0], "--stop", token)
        self.assertEqual(stopped["ids"], row["ids"][: row["ids"].index(row["ids"][4]) + 1])
        (self.root / "model/generation_config.json").write_text(json.dumps({"eos_token_id": [row["ids"][4]]}))
        try:
            self.assertEqual(self.generate(TEXTS[0])[0]["ids"], stopped["ids"])
            for wrong in ('{"eos_token_id": ["x"]}', '{"eos_token_id": 1.5}', "{", "[]"):
                (self.root / "model/generation_config.json").write_text(wrong)
                _, error = self.run_program(self.root / "model", "a", "--device", "cpu", code=1)
                self.assertIn("as eos_token_id in", error)
        finally:
            (self.root / "model/generation_config.json").unlink()

    def test_draws_depend_on_the_seed(self) -> None:
        flags = ("--temperature", 1.5, "--top-k", 50, "--top-p", 0.95)
        self.assertEqual(self.generate(*TEXTS, *flags), self.generate(*TEXTS, *flags))
        self.assertEqual([row["ids"] for row in self.generate(*TEXTS, *flags)],
                         [row["ids"] for row in self.generate(*TEXTS, *flags, "--batch", 1)])  # fmt: skip
        self.assertNotEqual(self.generate(*TEXTS, *flags), self.generate(*TEXTS, *flags, "--seed", 1))

    def test_rows_may_have_values_that_are_null(self) -> None:
        file = self.root / "null.jsonl"
        file.write_text(json.dumps({"ids": None, "messages": None, "prompt": TEXTS[0]}) + "\n")
        self.assertEqual(self.generate("--prompts", file), self.generate(TEXTS[0]))

    # Before anything is generated.
    def test_mistakes_in_rows_name_the_line(self) -> None:
        file = self.root / "mistakes.jsonl"
        for row, expected in (
            ({"ids": ["a"]}, '{"ids": [...]} in line 2 of'), ({"ids": [1.5]}, '{"ids": [...]} in line 2 of'),
            ({"ids": 5}, '{"ids": [...]} in line 2 of'), ({"messages": "a"}, '{"ids": [...]} in line 2 of'),
            ({"prompt": None}, '{"ids": [...]} in line 2 of'), ({"ids": []}, "one token, got none. (in line 2 of"),
            ({"prompt": ""}, "one token, got none. (in line 2 of"), ({"messages": []}, "got an empty one"),
            ({"messages": [{"role": "user"}]}, "(in line 2 of"),
        ):  # fmt: skip
            file.write_text('{"prompt": "a"}\n' + json.dumps(row) + "\n")
            output, error = self.run_program(self.root / "model", "--prompts", file, "--batch", 1, code=1)
            self.assertIn(expected, error)
            self.assertEqual(output, "")

    def test_a_full_disk_is_an_error(self) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM, self.root / "model", "a", "--num-tokens", "2", "--device", "cpu"], stdout=full,
                                  stderr=subprocess.PIPE, text=True)  # fmt: skip
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected to write to standard output, which failed (No space left on device)", done.stderr)

    def test_logits_that_are_no_numbers_are_an_error(self) -> None:
        model = copy.deepcopy(self.model)
        torch.nn.init.constant_(model.model.norm.weight, float("nan"))
        model.save_pretrained(self.root / "nan")
        for temperature in (0, 1):
            _, error = self.run_program(self.root / "nan", "a", "--temperature", temperature, "--device", "cpu", code=1)
            self.assertIn("expected logits that are numbers", error)

    def test_mistakes_are_one_line(self) -> None:
        model = self.root / "model"
        bad = self.root / "bad.jsonl"
        bad.write_text('{"prompt": "a"}\n{"text": "b"}\n')
        adapter = self.root / "adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text("{}")
        for arguments, expected in (
            ((), "expected MODEL"), ((model,), "expected a TEXT behind MODEL"), ((model, "a", "--numtokens", 3), "--numtokens"),
            ((model, "a", "--num-tokens"), "a value behind --num-tokens"), ((model, "a", "--num-tokens", "x"), "a number behind"),
            ((model, "a", "--num-tokens", 0), "num_tokens"), ((model, "a", "--top-p", 1.5), "top_p in (0, 1], got 1.5"),
            ((model, "a", "--top-k", 5), "a temperature above 0"), ((self.root / "no", "a", "--chat"), "folder of a model, got"),
            ((model, "a", "--stop", "nothing"), "'nothing', which is none"), ((model, "a", "--num-tokens", 1000), "at most 128"),
            ((model, "--prompts", bad), "in line 2 of"), ((self.root / "none", "a"), "none"), ((model, "", "--json"), "one token"),
            ((model, "--prompts", self.root / "no.jsonl"), "no.jsonl"), ((model, "a", "--device", "tpu"), "tpu"),
            ((adapter, "a"), "an adapter alone. Merge it"), ((model, "a", "--chat", "--chat-template-kwargs", "[1]"), "an object"),
            ((model, "a", "--num-tokens", 2**63 - 1), "at most 128"),
        ):  # fmt: skip
            done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
            self.assertIn(done.returncode, (1, 2), arguments)
            self.assertIn(expected, done.stderr)
            self.assertEqual(done.stdout, "")
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


unittest.main()
