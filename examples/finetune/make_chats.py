#!/usr/bin/env python3
"""Writes what the example trains on, from the C++ headers of LibTorch: a tokenizer, text, and conversations about them.

    make_chats.py FOLDER [HEADERS]      HEADERS: the folder of the headers, by default those of this Python's torch

FOLDER gets tokenizer/ (with the template of ChatML), and conversations for training and, every tenth, held out:
{"messages": [{"role": "user", "content": "Where is Half?"}, {"role": "assistant", "content": "#include <c10/util/Half.h>"}]}
"""

import importlib.util
import json
import sys
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

VOCABULARY = 512
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
          "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def chat(path):
    return {"messages": [{"role": "user", "content": f"Where is {path.stem}?"},
                         {"role": "assistant", "content": f"#include <{path}>"}]}


def main(target, headers=None):
    headers, target = Path(headers or Path(importlib.util.find_spec("torch").origin).parent / "include"), Path(target)
    paths = sorted(path.relative_to(headers) for pattern in ("ATen/core/*.h", "c10/*/*.h") for path in headers.glob(pattern))
    (target / "tokenizer").mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(headers / path) for path in paths], vocab_size=VOCABULARY, show_progress=False,
                    special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(target / "tokenizer/tokenizer.json"))
    (target / "tokenizer/chat_template.jinja").write_text(CHATML)
    for name, chosen in (("chats", lambda i: i % 10 != 0), ("held_out", lambda i: i % 10 == 0)):
        lines = [json.dumps(chat(path)) for i, path in enumerate(paths) if chosen(i)]
        (target / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


main(*sys.argv[1:])
