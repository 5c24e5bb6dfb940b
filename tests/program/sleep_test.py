"""examples/colocated_rl on GPUs: a job that sleeps gives the device back, and an engine runs that would not fit beside it."""

import json
import re
import subprocess

import torch

import program_job
from program_job import DEVICE, REPOSITORY, ProgramTest, main, num_gpus

SECONDS = 300
IN_USE = re.compile(r"GiB in use of the device: (\S+) before the job, (\S+) while it trains, (\S+) while it sleeps, "
                    r"(\S+) while the engine generates")


class Sleep(ProgramTest):
    def assert_gives_back(self, **mesh):
        """Trains 2 B parameters beside an engine that takes what is left of the device, and 8 GiB more."""
        folder = self.job().folder
        config = json.loads((REPOSITORY / "examples/colocated_rl/config.json").read_text())
        model = config["model_provider"]["model"]
        model["num_hidden_layers"] = 40
        model["layer"].update(hidden_size=2048, intermediate_size=6144, num_attention_heads=16, num_key_value_heads=8,
                              head_dim=128)
        config["model_provider"]["dtype"] = "bfloat16"
        config["mesh"] = mesh
        trainer = config["trainer"]
        trainer["schedule"]["total_steps"] = 4
        trainer["model_stage_factory"] = {"master_dtype": "float32"}
        trainer["checkpointing"]["save_dir"] = str(folder / "saves")
        total = torch.cuda.mem_get_info()[1] / 2**30
        config["rollouts"].update(num_rollouts=2, num_tokens=4, num_steps=2, weights=str(folder / "policy"),
                                  cache_gib=total - 16)
        path = folder / "config.json"
        path.write_text(json.dumps(config))
        result = subprocess.run([program_job.PROGRAMS / "colocated_rl", path], capture_output=True, text=True,
                                timeout=SECONDS, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = [tuple(map(float, each)) for each in IN_USE.findall(result.stderr)]
        self.assertEqual(len(found), 3, result.stderr)
        for before, training, asleep, generating in found:
            print(f"{mesh}: GiB before {before:.2f}, training {training:.2f}, asleep {asleep:.2f}, "
                  f"generating {generating:.2f} of {total:.0f}")
        for before, training, asleep, generating in found[1:]:  # the first round precedes the first step
            self.assertGreater(training - before, 10)
            self.assertLess(asleep - before, 0.1 * (training - before))
            self.assertGreater(training - before + generating, total)

    def test_gives_the_device_back(self):
        self.assert_gives_back()

    def test_gives_the_devices_of_shards_and_stages_back(self):
        if num_gpus() < 2:
            self.skipTest("needs 2 GPUs")
        self.assert_gives_back(data_parallel_shard=2)
        self.assert_gives_back(pipeline_parallel=2)


if __name__ == "__main__":
    if DEVICE == "cuda":
        main()
