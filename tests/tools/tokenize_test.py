"""d9d_tokenize beside the tokenizers wheel: the ids of its files, and what it refuses.

tokenize_test.py PROGRAM
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PROGRAM = sys.argv.pop()
END = "<|endoftext|>"
TEXTS = [f"Text number {i}: {'word ' * (i % 7)}é{i * i}\n" for i in range(300)]


class Tokenize(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        cls.tokenizer = Tokenizer(models.BPE())
        cls.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        cls.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
        cls.tokenizer.train_from_iterator(TEXTS, trainer)
        cls.tokenizer.save(str(cls.root / "tokenizer.json"))
        (cls.root / "a.jsonl").write_text("".join(json.dumps({"text": text, "other": text[::-1]}) + "\n" for text in TEXTS))
        pa.parquet.write_table(pa.table({"text": TEXTS}), cls.root / "a.parquet", row_group_size=70)
        for i in range(3):
            (cls.root / f"{i}.txt").write_text(TEXTS[i])
        (cls.root / "bad.jsonl").write_text('{"text": "good"}\n{"txt": "bad"}\n')

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def run_program(self, *arguments: object, code: int = 0) -> str:
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def tokenize(self, name: str, source: str, *flags: str) -> np.ndarray:
        output = self.run_program(self.root / name, self.root / source, "--tokenizer", self.root / "tokenizer.json", *flags)
        data = json.loads(output[output.index('{"kind"') :].splitlines()[0])
        self.assertEqual(data["path"], str(self.root / name / "tokens.bin"))
        return np.fromfile(data["path"], {"uint16": "<u2", "uint32": "<u4"}[data["dtype"]])

    def expected(self, texts: list[str], end: bool = True) -> list[int]:
        last = [self.tokenizer.token_to_id(END)] if end else []
        return [token for text in texts for token in [*self.tokenizer.encode(text).ids, *last]]

    def test_files_have_the_ids_of_the_wheel(self) -> None:
        for name, source, texts in (("jsonl", "a.jsonl", TEXTS), ("parquet", "a.parquet", TEXTS), ("text", "?.txt", TEXTS[:3])):
            for threads in (1, 3):
                ids = self.tokenize(f"{name}{threads}", source, f"--end-of-document={END}", f"--num-proc={threads}")
                self.assertEqual(ids.tolist(), self.expected(texts), name)
        ids = self.tokenize("other", "a.jsonl", "--column", "other")
        self.assertEqual(ids.tolist(), self.expected([text[::-1] for text in TEXTS], end=False))

    def test_conversations_have_the_ids_and_masks_of_transformers(self) -> None:
        folder = self.root / "chat"
        folder.mkdir()
        own = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, eos_token=END)
        own.save_pretrained(folder)
        template = ("{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}"
                    "{% generation %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{{ eos_token }}{% endgeneration %}"
                    "{% else %}{{ m.content }}{{ '\\n' }}{% endif %}{% endfor %}")
        own.chat_template = template
        (folder / "chat_template.jinja").write_text(template)
        tools = [{"type": "function", "function": {"name": "add", "description": "é"}}]
        calls = [{"type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": 2}}}]
        chats = [{"chat": [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1], "tool_calls": calls},
                           {"role": "tool", "content": "3"}, {"role": "assistant", "content": text}], "uses": tools}
                 for text in TEXTS[:40]]
        chats[3:5] = [{"chat": chats[3]["chat"][3:]}, {"chat": chats[4]["chat"][3:], "uses": None}]  # without tools
        (self.root / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        # Structs have a null for each key that another row has.
        pa.parquet.write_table(pa.Table.from_pylist(chats), self.root / "chats.parquet", row_group_size=7)
        pa.parquet.write_table(pa.Table.from_pylist([{**chat, "uses": None} for chat in chats]), self.root / "none.parquet")
        flags = ["--tokenizer", folder / "tokenizer.json", "--messages-column=chat", "--tools-column=uses",
                 f"--python={sys.executable}"]  # fmt: skip
        arguments = [self.root / "chats.jsonl", *flags]
        output = self.run_program(self.root / "chats", *arguments, "--show=2", "--num-proc=2")
        self.assertEqual(output.count("what is learned between ⟦ and ⟧"), 2)
        self.assertIn(f"user: {TEXTS[0]}\nassistant: ⟦{TEXTS[0][::-1]}", output)
        data = json.loads(output[output.index('{"kind"') :].splitlines()[0])
        self.assertEqual((data["path"], data["view"]["kind"]), (str(self.root / "chats"), "packed"))

        ids = np.fromfile(self.root / "chats/tokens.bin", "<u2")
        ranges = np.fromfile(self.root / "chats/targets.bin", "<i4").reshape(-1, 2)
        of_chats = np.fromfile(self.root / "chats/target_offsets.bin", "<i8")
        expected = []
        for i, chat in enumerate(chats):
            theirs = own.apply_chat_template(chat["chat"], tools=chat.get("uses"), return_dict=True, return_assistant_tokens_mask=True)
            mask = np.zeros(len(theirs["input_ids"]), int)
            for first, last in ranges[of_chats[i] : of_chats[i + 1]]:
                mask[first:last] = 1
            self.assertEqual(mask.tolist(), theirs["assistant_masks"], chat)
            expected += theirs["input_ids"]
        self.assertEqual(ids.tolist(), expected)
        self.run_program(self.root / "of_parquet", self.root / "chats.parquet", *flags)
        for name in ("tokens", "targets", "target_offsets"):
            self.assertEqual((self.root / f"of_parquet/{name}.bin").read_bytes(), (self.root / f"chats/{name}.bin").read_bytes(), name)
        self.assertIn("no conversation has tools", self.run_program(self.root / "no_tools", self.root / "none.parquet", *flags))

        kwargs = {"style": {"é": [1, None], "a": 2.0}, "eos_token": "!"}
        (folder / "chat_template.jinja").write_text("{{ style | tojson if style is defined }}" + template)
        output = self.run_program(self.root / "kwargs", *arguments, "--show=1", "--chat-template-kwargs", json.dumps(kwargs))
        self.assertIn('{"é": [1, null], "a": 2.0}' + json.dumps(tools, ensure_ascii=False) + "user: ", output)
        self.assertIn(f"assistant: ⟦{TEXTS[0]}!⟧\n", output)
        self.assertIn("--chat-template-kwargs: line 1", self.run_program(self.root / "no_json", *arguments,
                                                                         "--chat-template-kwargs=style", code=1))  # fmt: skip

        (folder / "chat_template.jinja").write_text(template.replace("'assistant'", "'user'"))
        self.assertIn("around what the user says", self.run_program(self.root / "wrong", *arguments, code=1))

    def test_bad_rows_are_refused_or_skipped(self) -> None:
        flags = [self.root / "bad.jsonl", "--tokenizer", self.root / "tokenizer.json"]
        self.assertIn("line 2 of", self.run_program(self.root / "bad", *flags, code=1))
        self.assertFalse((self.root / "bad").exists())
        self.assertIn("skipped 1 bad rows", self.run_program(self.root / "skipped", *flags, "--bad-rows=skip"))

    def test_what_is_wrong_with_arguments_is_named(self) -> None:
        good = ["--tokenizer", str(self.root / "tokenizer.json")]
        source = str(self.root / "a.jsonl")
        for arguments, code, text in (
            ([], 2, "expected TARGET and SOURCE, got neither"),
            (["t"], 2, "got only 't'"),
            (["t", source], 2, "expected --tokenizer"),
            (["t", source, *good, "--colum", "x"], 2, "expected a flag, got '--colum'"),
            (["t", source, *good, "--column"], 2, "expected a value behind --column"),
            (["t", source, *good, "--column=a", "--column=b"], 2, "--column once"),
            (["t", source, *good, "--num-proc", "many"], 2, "expected a number behind --num-proc, got 'many'"),
            (["t", source, *good, "--num-proc", "0"], 1, "num_proc"),
            (["t", source, *good, "--add-special-tokens=1"], 2, "without a value"),
            (["t", source, *good, "--bad-rows=drop"], 1, "drop"),
            (["t", source, *good, "--kind=csv"], 1, "csv"),
            (["t", "a.csv", *good], 2, "Add --kind"),
            (["t", "a.jsonl.gz", *good], 2, "compressed as its name says. Unpack it"),
            (["t", str(self.root / "none*.jsonl"), *good], 1, "none*.jsonl"),
            (["t", source, *good, "--end-of-document=<end>"], 1, "'<end>'"),
            ([str(self.root), source, *good], 2, "not to exist"),
            (["--help"], 0, "d9d_tokenize TARGET SOURCE"),
        ):
            self.assertIn(text, self.run_program(*arguments, code=code), arguments)


if __name__ == "__main__":
    unittest.main()
