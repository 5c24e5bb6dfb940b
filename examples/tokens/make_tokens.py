#!/usr/bin/env python3
"""Writes texts as one file of token ids for data of kind "tokens" with dtype "uint32".

    make_tokens.py TOKENIZER.json END_TOKEN OUT.bin TEXT...
"""

import sys

import numpy as np
from tokenizers import Tokenizer

tokenizer_file, end_token, out, *texts = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer_file)
end = tokenizer.token_to_id(end_token)
with open(out, "wb") as file:
    for text in texts:
        ids = tokenizer.encode(open(text, encoding="utf-8").read(), add_special_tokens=False).ids
        np.array([*ids, end], dtype="<u4").tofile(file)
