#!/usr/bin/env python3
"""Writes pairs of answers to the questions of examples/finetune: its answer is preferred to one with another header.

    make_pairs.py FOLDER      FOLDER: has chats.jsonl and held_out.jsonl of examples/finetune/make_chats.py

FOLDER gets pairs.jsonl and held_out_pairs.jsonl:
{"prompt": [{"role": "user", "content": "Where is Half?"}],
 "chosen": [{"role": "assistant", "content": "Half.h is in c10/util."}],
 "rejected": [{"role": "assistant", "content": "#include <c10/util/Half.h>"}]}
"""

import json
import sys
from pathlib import Path


def pair(line):
    user, assistant = json.loads(line)["messages"]
    path = Path(assistant["content"].removeprefix("#include <").removesuffix(">"))
    return {"prompt": [user], "chosen": [{"role": "assistant", "content": f"{path.name} is in {path.parent}."}],
            "rejected": [assistant]}


def main(folder):
    for source, target in (("chats", "pairs"), ("held_out", "held_out_pairs")):
        lines = (Path(folder) / f"{source}.jsonl").read_text().splitlines()
        (Path(folder) / f"{target}.jsonl").write_text("".join(json.dumps(pair(line)) + "\n" for line in lines))


main(sys.argv[1])
