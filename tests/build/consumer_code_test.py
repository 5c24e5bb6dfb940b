"""What a program on this library compiles itself: a training program's object holds its own types, not what is the same for
every program. Sizes do not depend on the machine, as times would (benchmarks/build/consumer_edit.py measures those).

  consumer_code_test.py OBJECT   of examples/custom_model/main.cpp, compiled with -O2
"""

import subprocess
import sys
import unittest
from pathlib import Path

OBJECT = Path(sys.argv.pop())
MAX_CODE_BYTES = 150_000  # 114,000 when this test was written; 211,000 before the trainer was compiled once
COMPILED_ONCE = ("nlohmann::json_abi_v3_11_2::detail::serializer<", "d9d::MicrobatchRunner::", "d9d::StepGraphs::",
                 "d9d::TypeOf<d9d::LaunchConfig>", "d9d::detail::TypeOf<d9d::TrainerConfig>")


def functions(item):
    listing = subprocess.run(["nm", "-S", "-C", "--defined-only", item], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        parts = line.split(None, 3)
        if len(parts) == 4 and parts[2] in "tTW":
            yield parts[3], int(parts[1], 16)


class ConsumerCode(unittest.TestCase):
    def test_is_that_of_the_program(self):
        code = dict(functions(OBJECT))
        self.assertTrue(any("SnippetClassifier" in name for name in code), "expected the example's object")
        total = sum(code.values())
        largest = sorted(code, key=code.get, reverse=True)[:20]
        self.assertLess(total, MAX_CODE_BYTES, "largest: " + "\n".join(f"{code[name]} {name[:160]}" for name in largest))

    def test_has_nothing_that_is_the_same_for_every_program(self):
        code = dict(functions(OBJECT))
        self.assertEqual([name for name in code if name.startswith(COMPILED_ONCE)], [])


if __name__ == "__main__":
    unittest.main()
