"""custom_decoder trains on every mesh as on one rank."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import program_job
from program_job import REPOSITORY, SECONDS, ProgramTest, main
from safetensors.torch import load_file

CONFIG = "examples/custom_decoder/config.json"
SMALL = ["model.hidden_size=24", "model.inner_size=31", "model.head_dim=8", "data.sequence_length=23", "dtype=float64",
         "trainer.schedule.total_steps=4", "data.global_batch_size=8", "data.microbatch_size=2"]
TOLERANCE = 1e-9  # "fp64" of tests/support/tolerances.h


class CustomDecoder(ProgramTest):
    def trained(self, *arguments):
        """The exported weights."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        result = subprocess.run(
            [str(program_job.PROGRAMS / "custom_decoder"), CONFIG, *SMALL, 'trainer.logging.tracker={"provider":"log"}',
             f"trainer.checkpointing.save_dir={folder / 'saves'}", "launch.num_threads=1", "launch.device=cpu",
             f"export_to={folder / 'export'}", *arguments],
            capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)
        self.assertEqual(result.returncode, 0, result.stderr)
        return load_file(folder / "export" / "model.safetensors")

    def assert_same(self, tensors, expected):
        self.assertEqual(set(tensors), set(expected))
        for name, tensor in tensors.items():
            self.assertLessEqual((tensor - expected[name]).abs().max(), TOLERANCE * expected[name].abs().max(), name)

    def test_any_mesh_trains_as_one_rank(self):
        for more in ([], ['data.view={"kind":"packed","long_documents":"split"}']):
            expected = self.trained(*more)
            for mesh in (["mesh.tensor_parallel=2"], ["mesh.tensor_parallel=4"], ["mesh.context_parallel_shard=2"],
                         ["mesh.pipeline_parallel=2"], ["mesh.data_parallel_shard=2"],
                         ["mesh.tensor_parallel=2", "mesh.pipeline_parallel=2"],
                         ["mesh.tensor_parallel=2", "mesh.context_parallel_shard=2"]):
                with self.subTest(mesh=mesh, more=more):
                    self.assert_same(self.trained(*more, *mesh), expected)


if __name__ == "__main__":
    main()
