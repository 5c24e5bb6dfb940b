"""custom_optimizer against ADOPT's formula in float64, on several meshes and from a checkpoint."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import program_job
import torch
from program_job import REPOSITORY, SECONDS, ProgramTest, main
from safetensors.torch import load_file

CONFIG = "examples/custom_optimizer/config.json"
NUM_STEPS = 40
RATE, BETA_1, BETA_2, EPS = 0.03, 0.9, 0.9999, 1e-6
TOLERANCE = 1e-4  # "fp32 training loss" of tests/support/tolerances.h


def adopt(num_steps):
    """Weight and bias after the steps, by algorithm 2 of arXiv:2411.02853."""
    x = torch.sin(torch.arange(64).double()[:, None] * torch.arange(1, 5))
    y = torch.stack([x.sum(1), x[:, 0] - 2 * x[:, 3]], 1)
    parameters = [torch.zeros(2, 4).double().requires_grad_(), torch.zeros(2).double().requires_grad_()]
    moments = [(torch.zeros(2, 4).double(), None), (torch.zeros(2).double(), None)]
    for step in range(num_steps):
        loss = torch.nn.functional.mse_loss(torch.nn.functional.linear(x, *parameters), y)
        gradients = torch.autograd.grad(loss, parameters)
        for i, (parameter, gradient, (first, second)) in enumerate(zip(parameters, gradients, moments, strict=True)):
            if step == 0:
                moments[i] = (first, gradient**2)
                continue
            normed = gradient / torch.maximum(second.sqrt(), torch.tensor(EPS))
            bound = step ** (1 / 4)
            first = BETA_1 * first + (1 - BETA_1) * normed.clip(-bound, bound)
            parameter.data -= RATE * first
            moments[i] = (first, BETA_2 * second + (1 - BETA_2) * gradient**2)
    return {"linear.weight": parameters[0].detach(), "linear.bias": parameters[1].detach()}


class CustomOptimizer(ProgramTest):
    def exported(self, folder, *arguments):
        result = subprocess.run(
            [str(program_job.PROGRAMS / "custom_optimizer"), CONFIG, f"trainer.schedule.total_steps={NUM_STEPS}",
             f"trainer.checkpointing.save_dir={folder / 'saves'}", "trainer.checkpointing.period_steps=20",
             "launch.num_threads=1", "launch.device=cpu", f"export_to={folder / 'export'}", *arguments],
            capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)
        self.assertEqual(result.returncode, 0, result.stderr)
        return load_file(folder / "export" / "model.safetensors")

    def assert_as_expected(self, tensors):
        expected = adopt(NUM_STEPS)
        self.assertEqual(set(tensors), set(expected))
        for name, tensor in tensors.items():
            self.assertLessEqual((tensor - expected[name]).abs().max(), TOLERANCE * expected[name].abs().max(), name)

    def test_any_mesh_trains_by_the_formula_and_continues_on_another(self):
        for before, after in (((), ("mesh.data_parallel_shard=2",)), (("mesh.data_parallel_shard=4",), ()),
                              (("mesh.data_parallel_replicate=2",), ("mesh.data_parallel_shard=2",))):
            with self.subTest(before=before, after=after):
                folder = Path(tempfile.mkdtemp())
                self.addCleanup(shutil.rmtree, folder)
                self.assert_as_expected(self.exported(folder, *before))
                shutil.rmtree(folder / "saves" / "save-40")
                self.assert_as_expected(self.exported(folder, *after))

    def test_its_own_keys_are_checked(self):
        result = subprocess.run(
            [str(program_job.PROGRAMS / "custom_optimizer"), CONFIG, "optimizer.eps=0"],
            capture_output=True, text=True, timeout=SECONDS, cwd=REPOSITORY)
        self.assert_one_error(result, "optimizer.eps")


if __name__ == "__main__":
    main()
