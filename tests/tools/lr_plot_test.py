"""d9d_lr_plot as a user runs it."""

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

PROGRAM = sys.argv[1]
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, code=0):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == code, (arguments, result)
    return result.stdout if code == 0 else result.stderr


def main():
    assert "--html" in run("--help")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job.json"
        job.write_text(json.dumps({"lr_scheduler": {"name": "cosine", "warmup_steps": 10}, "optimizer": {"lr": 0.5},
                                   "trainer": {"schedule": {"total_steps": 110}}, "a key of the program": 1}))
        text = run(job)
        assert "learning rate, cosine, 110 steps" in text and "0.5 in step 10  (the warm-up, linear)" in text, text
        svg, page = folder / "lr.svg", folder / "lr.html"
        said = run(job, "lr_scheduler.min_ratio=0.2", "--svg", svg, "--html", page, "--steps", 60)
        assert said == f"lr_plot: wrote {svg}\nlr_plot: wrote {page}\n", said
        curve = next(e for e in ElementTree.parse(svg).getroot().iter() if e.get("class") == "curve")
        assert len(re.findall("[ML]", curve.get("d"))) == 60
        points = json.loads(re.search(r'id="points">(.*?)</script>', page.read_text(), re.DOTALL)[1])
        for step, rate in points:
            factor = step / 10 if step < 10 else 0.2 + 0.8 * (1 + math.cos(math.pi * (step - 10) / 50)) / 2
            assert abs(rate - 0.5 * factor) < 1e-12, (step, rate)
        assert not re.search(r'(src|href)=|https?://(?!www\.w3\.org/2000/svg)', page.read_text())  # opens offline

        assert "expected the number of steps" in run(job, "trainer={}", code=1)
        assert "warmup_steps" in run(job, "lr_scheduler.warmup=3", code=1)
        for rate in ("text", "-1", "[1]"):
            assert "expected a number >= 0 as optimizer.lr" in run(job, f"optimizer.lr={rate}", code=1), rate
        for steps in ("text", "0", "1.5"):
            assert "as trainer.schedule.total_steps" in run(job, f"trainer.schedule.total_steps={steps}", code=1), steps
        assert "expected a number from 1 on" in run(job, "--steps", "x", code=2)
        assert "no step in this run" in subprocess.run([PROGRAM, job, "--steps", "10"], capture_output=True, text=True).stderr
        (folder / "none.json").write_text("{}")
        assert "expected lr_scheduler" in run(folder / "none.json", code=1)
    for job in ROOT.glob("examples/*/pretrain/*.json"):
        assert "in step" in run(job, "--steps", 300), job


main()
