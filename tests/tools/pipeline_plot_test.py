"""d9d_pipeline_plot as a user runs it."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

PROGRAM = sys.argv[1]
COMPUTE_1F1B = """\
r0: 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0B0 0F7 0B1 0B2 0B3 0B4 0B5 0B6 0B7
r1: 1F0 1F1 1F2 1F3 1F4 1B0 1F5 1B1 1F6 1B2 1F7 1B3 1B4 1B5 1B6 1B7
r2: 2F0 2F1 2F2 2B0 2F3 2B1 2F4 2B2 2F5 2B3 2F6 2B4 2F7 2B5 2B6 2B7
r3: 3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7
"""


def run(*arguments, code=0):
    result = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == code, (arguments, result)
    return result.stdout if code == 0 else result.stderr


def main():
    assert run("1f1b", "num_stages_per_rank=1", "zero_bubble=false", "--compute-only") == COMPUTE_1F1B
    assert "--compute-only" in run("--help")
    assert "makespan 33, bubble 0.272727" in run('{"schedule": "gpipe"}')
    assert "expected at least 2 microbatches a rank" in run("dual_pipe_v", "--microbatches", 7, code=1)
    assert "num_stages_per_rank" in run("looped_bfs", code=1)
    assert "unknown option" in run("gpipe", "--nothing", code=2)
    with tempfile.TemporaryDirectory() as folder:
        check_files(Path(folder))


def check_files(folder):
    svg, trace, costs, program = (folder / name for name in ("a.svg", "a.json", "costs.json", "program.txt"))
    costs.write_text(json.dumps({"stages": [{"forward": 1.5, "activation_bytes": 3e9}], "link": {"time": 0.25}}))
    run("zero_bubble_v", "--ranks", 3, "--microbatches", 6, "--costs", costs, "--unit", "ms", "--svg", svg, "--trace", trace)
    root = ElementTree.parse(svg).getroot()
    cells = [e for e in root.iter() if e.tag.endswith("rect") and e.get("class") == "cell"]
    assert len(cells) == 3 * 2 * 6 * 3, len(cells)  # F, I, W
    events = json.loads(trace.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(cells) and {e["dur"] for e in slices if e["cat"] == "forward"} == {1500.0}
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 4 * 2 * 6
    # Text that is printed is a program that is read.
    text = run("dual_pipe_v", "--ranks", 2, "--text")
    program.write_text(text)
    assert run("--program", program, "--text") == text
    program.write_text(re.sub("0SEND_F3 ", "", text))
    assert "lacks 0SEND_F3" in run("--program", program, code=1)


main()
