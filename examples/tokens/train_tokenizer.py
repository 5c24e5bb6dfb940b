#!/usr/bin/env python3
"""Trains a byte-level BPE tokenizer on texts. Id 0 is <|endoftext|>.

    train_tokenizer.py VOCABULARY_SIZE TOKENIZER.json TEXT...
"""

import sys

from tokenizers import ByteLevelBPETokenizer

vocabulary_size, out, *texts = sys.argv[1:]
tokenizer = ByteLevelBPETokenizer()
tokenizer.train(texts, vocab_size=int(vocabulary_size), special_tokens=["<|endoftext|>"])
tokenizer.save(out)
