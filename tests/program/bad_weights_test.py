"""The pretraining examples refuse source_checkpoint folders that are damaged, or of another model."""

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
        self.assert_weights_refused("gate_proj", "48", "64",
                                    arguments=["model_provider.model.layer.intermediate_size=64"])

    def test_a_folder_without_weights_is_named(self):
        self.file.unlink()
        self.assert_weights_refused(self.source.export, "model.safetensors")
        shutil.rmtree(self.source.export)
        self.assert_weights_refused(self.source.export)


if __name__ == "__main__":
    main()
