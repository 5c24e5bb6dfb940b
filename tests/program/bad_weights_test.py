"""The pretraining examples must refuse source_checkpoint folders that are damaged or belong to another model."""

import json
import shutil
import struct

from program_job import ProgramTest, main


class BadWeights(ProgramTest):
    def setUp(self):
        self.source = self.job()
        result = self.source.run("trainer.schedule.total_steps=3")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.file = self.source.export / "model.safetensors"
        content = self.file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        self.header = json.loads(content[8 : 8 + length])
        self.data = content[8 + length :]

    def write(self, header, data):
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file.write_bytes(struct.pack("<Q", len(text)) + text + data)

    def assert_weights_refused(self, *words, arguments=()):
        job = self.job()
        result = job.run(f"trainer.model_stage_factory.source_checkpoint={self.source.export}", *arguments)
        self.assert_refused(job, result, *words)

    def test_damaged_files_are_refused(self):
        name, entry = next((n, e) for n, e in self.header.items() if n != "__metadata__")
        begin, end = entry["data_offsets"]
        lies = {
            "beyond the file": {**entry, "data_offsets": [begin, end + (1 << 40)]},
            "fewer bytes than the shape": {**entry, "data_offsets": [begin, end - 4]},
            "backwards": {**entry, "data_offsets": [end, begin]},
            "negative shape": {**entry, "shape": [-1, *entry["shape"][1:]]},
            "overflowing shape": {**entry, "shape": [1 << 62, 1 << 62]},
            "unknown dtype": {**entry, "dtype": "F77"},
            "no shape": {"dtype": "F32", "data_offsets": [begin, end]},
            "not an entry": 7,
        }
        for lie, changed in lies.items():
            with self.subTest(lie):
                self.write({**self.header, name: changed}, self.data)
                self.assert_weights_refused(self.file)
        self.write(self.header, self.data)
        whole = self.file.read_bytes()
        files = {
            "empty": b"",
            "header length beyond the file": struct.pack("<Q", 1 << 62) + b"{}",
            "header is no JSON": struct.pack("<Q", 8) + b"pickled!",
            "truncated": whole[: len(whole) // 2],
            "truncated by one byte": whole[:-1],
        }
        for damage, content in files.items():
            with self.subTest(damage):
                self.file.write_bytes(content)
                self.assert_weights_refused(self.file)

    def test_a_missing_tensor_is_named(self):
        norm = "model.norm.weight"
        self.write({"other" if name == norm else name: entry for name, entry in self.header.items()}, self.data)
        self.assert_weights_refused(norm)

    def test_a_tensor_of_another_shape_is_named(self):
        name = "model.layers.0.mlp.gate_proj.weight"
        rows, columns = self.header[name]["shape"]
        self.write({**self.header, name: {**self.header[name], "shape": [columns, rows]}}, self.data)
        self.assert_weights_refused(name, rows, columns)

    def test_sizes_that_config_json_contradicts_are_named(self):
        config = self.source.export / "config.json"
        for key, value, published in (("layer.intermediate_size", 64, 48), ("layer.rms_norm_eps", 1e-5, 1e-6),
                                      ("num_hidden_layers", 2, 1), ("rope_base", 1000000, 10000),
                                      ("tie_word_embeddings", "true", "false"), ("split_vocab_size.bytes", 300, 256),
                                      ("rope_scaling", '{"type": "linear", "factor": 2.0}', "null")):
            with self.subTest(key):
                self.assert_weights_refused(
                    f"model_provider.model.{key.removesuffix('.bytes')}: expected ", published, value if "{" not in str(value) else "linear",
                    config, "from_checkpoint", arguments=[f"model_provider.model.{key}={value}"])

    def test_changes_to_the_sizes_of_a_checkpoint_are_only_of_what_it_does_not_decide(self):
        for changes, texts in (({"rope_base": 7}, ("model_provider.model.from_checkpoint.rope_base: expected 10000", "got 7")),
                               ({"layer": {"hiden_size": 8}}, ("model_provider.model.from_checkpoint.layer", "hiden_size")),
                               ("all", ('expected {"from_checkpoint": {...}}',))):
            with self.subTest(changes):
                self.assert_weights_refused(
                    *texts, arguments=[f"model_provider.model={json.dumps({'from_checkpoint': changes})}"])

    def test_what_config_json_lacks_is_named_with_the_folder(self):
        config = self.source.export / "config.json"
        published = json.loads(config.read_text())
        del published["head_dim"]
        config.write_text(json.dumps(published))
        self.assert_weights_refused("head_dim", f"in {self.source.export}")

    def test_a_folder_without_config_is_named(self):
        (self.source.export / "config.json").unlink()
        self.assert_weights_refused(self.source.export / "config.json")

    def test_a_checkpoint_of_another_family_is_named(self):
        moe = self.job("moe")
        result = moe.run(f"trainer.model_stage_factory.source_checkpoint={self.source.export}")
        self.assert_refused(moe, result, "model_type", "qwen3_moe")

    def test_sizes_from_no_checkpoint_are_refused(self):
        job = self.job()
        result = job.run("model_provider.model=from_checkpoint")
        self.assert_refused(job, result, "model_provider.model", "trainer.model_stage_factory.source_checkpoint")
        self.assert_refused(job, job.run("model_provider.model=from_chekpoint"), '"from_checkpoint", got "from_chekpoint"')

    def test_a_folder_without_weights_is_named(self):
        self.file.unlink()
        self.assert_weights_refused(self.source.export, "model.safetensors")
        shutil.rmtree(self.source.export)
        self.assert_weights_refused(self.source.export)


if __name__ == "__main__":
    main()
