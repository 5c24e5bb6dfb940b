"""Tokens are whose they say: exports carry their tokenizer and transformers writes text with them, and a job is refused where
ids would mean other texts, or where the files that it writes are another job's."""

import fcntl
import json
import os
import socket
import subprocess
import sys

import torch
import transformers
from program_job import ProgramTest, main
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
          "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def write_tokenizer(path, texts, special=("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(list(special))
    path.parent.mkdir(exist_ok=True)
    path.write_text(tokenizer.to_str())
    return path


class Tokens(ProgramTest):
    def job_of_text(self, texts=("the quick brown fox " * 3, "line 7: 49\nline 8: 64\n" * 3), **data):
        job = self.job()
        file = job.folder / "text.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 20))
        tokenizer = write_tokenizer(job.folder / "tokenizer/tokenizer.json", list(texts))
        for key in ("kind", "paths"):
            job.config["data"].pop(key)
        job.config["data"].update(kind="jsonl", paths=[str(file)], tokenizer=str(tokenizer), view={"kind": "documents"},
                                  end_of_document="<|endoftext|>", cache=str(job.folder / "cache"),
                                  sequence_length=64, **data)
        job.config["model_provider"]["model"].update(split_vocab_size={"all": 320}, split_vocab_order=["all"])
        return job

    def train(self, job, *arguments):
        result = job.run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_generated_alike(self, job, result, prompt, num_tokens, text_of_prompt=None):
        """What the program samples at temperature 0 is what transformers generates from the export."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(job.export)
        model = transformers.AutoModelForCausalLM.from_pretrained(job.export, dtype=torch.float32)
        inputs = tokenizer(text_of_prompt or prompt, return_tensors="pt", add_special_tokens=False)
        ids = model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False)[0][inputs["input_ids"].shape[1]:]
        expected = tokenizer.decode(ids, skip_special_tokens=True)
        self.assertIn(prompt + ("\n" if text_of_prompt else "") + expected.rstrip("\ufffd"), result.stdout)
        return tokenizer, model

    def test_transformers_writes_text_with_the_export_of_a_tokenizer(self):
        job = self.job_of_text()
        job.config["sample"] = {"prompts": ["line 7:"], "num_tokens": 12, "temperature": 0}
        result = self.train(job, "trainer.schedule.total_steps=20", "optimizer.lr=0.01")
        tokenizer, model = self.assert_generated_alike(job, result, "line 7:", 12)
        self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
        self.assertEqual(model.generation_config.eos_token_id, tokenizer.eos_token_id)
        self.assertEqual((job.export / "tokenizer.json").read_bytes(),
                         (job.folder / "tokenizer/tokenizer.json").read_bytes())
        self.train(job)  # the next export takes its place

    def test_transformers_writes_text_with_the_export_of_bytes(self):
        job = self.job()
        job.config["sample"] = {"prompts": ["line 7:"], "num_tokens": 12, "temperature": 0}
        result = self.train(job, "trainer.schedule.total_steps=20", "optimizer.lr=0.01")
        tokenizer, _ = self.assert_generated_alike(job, result, "line 7:", 12)
        self.assertEqual(tokenizer("Ü a")["input_ids"], list("Ü a".encode()))

    def test_a_chat_is_exported_with_its_template_and_ends_where_an_answer_ends(self):
        base = self.job_of_text()
        self.train(base)
        job = self.job_of_text()
        chats = [{"messages": [{"role": "user", "content": "7", "id": 1}, {"role": "assistant", "content": "49"}]}] * 40
        (job.folder / "text.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        (job.folder / "tokenizer/chat_template.jinja").write_text(CHATML)
        job.config["data"].pop("end_of_document")
        job.config["data"]["messages_column"] = "messages"
        job.config["sample"] = {"prompts": ["7"], "num_tokens": 12, "temperature": 0}
        (base.export / "generation_config.json").write_text('{"eos_token_id": 299, "top_k": 20}')
        result = self.train(job, f"trainer.model_stage_factory.source_checkpoint={base.export}", "optimizer.lr=0.01",
                            "trainer.schedule.total_steps=20", "model_provider.model=from_checkpoint")
        self.assertIn("chatml does not read: id.", result.stderr)
        prompt = "<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"
        tokenizer, model = self.assert_generated_alike(job, result, "7", 12, prompt)
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": "7"}], tokenize=False, add_generation_prompt=True)
        self.assertEqual(rendered, prompt)
        self.assertEqual(model.generation_config.eos_token_id, [tokenizer.convert_tokens_to_ids("<|im_end|>"), 299])
        self.assertEqual(model.generation_config.top_k, 20)

    def test_a_job_on_ids_exports_the_tokenizer_of_its_source_checkpoint(self):
        base = self.job_of_text()
        self.train(base)
        job = self.job()
        (job.folder / "ids.bin").write_bytes(bytes(range(256)) * 8)
        job.config["data"].pop("paths")
        job.config["data"].update(kind="tokens", path=str(job.folder / "ids.bin"), dtype="uint8")
        job.config["sample"] = None
        self.train(job, f"trainer.model_stage_factory.source_checkpoint={base.export}", "model_provider.model=from_checkpoint")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            self.assertEqual((job.export / name).read_bytes(), (base.export / name).read_bytes(), name)

    def test_another_tokenizer_than_that_of_the_weights_is_refused(self):
        base = self.job_of_text()
        base.config["trainer"]["checkpointing"]["period_steps"] = "last_step"
        self.train(base)
        other = self.job_of_text(texts=("zebras graze " * 3, "0 1 2 3 4 5 " * 3))
        for source in (base.export, base.config["trainer"]["checkpointing"]["save_dir"]):
            arguments = [f"trainer.model_stage_factory.source_checkpoint={base.folder / source}",
                         "model_provider.model=from_checkpoint"]
            self.assert_refused(other, other.run(*arguments), "source_checkpoint", "whose ids stand for other texts",
                                other.folder / "tokenizer/tokenizer.json")
        more = self.job_of_text()  # a further token of chats takes no id from the model
        write_tokenizer(more.folder / "tokenizer/tokenizer.json", ["the quick brown fox " * 3, "line 7: 49\nline 8: 64\n" * 3],
                        ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"))
        result = self.train(more, f"trainer.model_stage_factory.source_checkpoint={base.export}",
                            "model_provider.model=from_checkpoint")
        self.assertIn("other added tokens", result.stderr)

    def test_a_job_does_not_continue_on_other_data(self):
        for view in ("documents", "concatenated"):
            with self.subTest(view):
                job = self.job_of_text()
                job.config["data"]["view"] = {"kind": view}
                job.config["trainer"]["checkpointing"]["period_steps"] = 2
                self.train(job, "trainer.schedule.total_steps=4")
                lines = (job.folder / "text.jsonl").read_text().splitlines(keepends=True)
                (job.folder / "text.jsonl").write_text("".join(reversed(lines)))
                result = job.run("trainer.schedule.total_steps=6")
                self.assert_one_error(result, "got other documents", "source_checkpoint")

    def test_a_head_that_is_not_the_embedding_trains_as_in_transformers(self):
        job = self.job()
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3)
        source = job.folder / "source"
        transformers.Qwen3ForCausalLM(config).float().save_pretrained(source)
        saved = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**saved, "tie_word_embeddings": True}))
        job.config["data"].update(sequence_length=16, global_batch_size=1, microbatch_size=1, shuffle=False)
        job.config["sample"] = None
        result = self.train(job, f"trainer.model_stage_factory.source_checkpoint={source}", "model_provider.dtype=float32",
                            "model_provider.model=from_checkpoint", "trainer.schedule.total_steps=3")
        self.assertIn("lm_head.weight is not its embedding", result.stderr)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        ids = torch.tensor([list((job.folder / "text.txt").read_bytes()[:17])])
        loss = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).item()
        self.assertAlmostEqual(job.losses()[0], loss, delta=1e-5)
        self.assertFalse(json.loads((job.export / "config.json").read_text())["tie_word_embeddings"])

    def test_what_another_job_writes_to_is_refused(self):
        job = self.job()
        job.metrics.parent.mkdir()
        for place in (job.export, job.metrics):
            with self.subTest(place), open(f"{place}.lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self.assert_one_error(job.run(), place, "in use by no other job")
                self.assertFalse(job.export.exists())

    def test_what_a_killed_export_left_is_removed(self):
        job = self.job()
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        machine = socket.gethostname()
        for process, stays in ((ended.pid, False), (os.getpid(), True)):
            rest = job.folder / f"run/export.tmp-{machine}-{process}-0"
            rest.mkdir(parents=True)
            (rest / "model.safetensors").write_text("half")
            self.train(job)
            self.assertEqual(rest.exists(), stays)


if __name__ == "__main__":
    main()
