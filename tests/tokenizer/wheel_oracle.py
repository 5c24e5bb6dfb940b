#!/usr/bin/env python3
"""What the tokenizers wheel makes of texts, for C++ to compare with.

    wheel_oracle.py FOLDER MEGABYTES     tokenizers as <name>.json, and <name>.bin: records of
        text, ids, begins and ends of offsets, decoded text with and without special tokens, each after its length (u32)
"""

import random
import sys
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import corpus
import oracle_tokenizers

TIKTOKEN = Path(sysconfig.get_paths()["purelib"]) / "dashscope/resources/qwen.tiktoken"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def write_text(file, text):
    data = text.encode()
    file.write(len(data).to_bytes(4, "little") + data)


def write_numbers(file, numbers):
    file.write(len(numbers).to_bytes(4, "little") + np.array(numbers, dtype="<u4").tobytes())


def write_record(file, tokenizer, text, lost=""):
    text = text.translate({ord(character): None for character in lost})
    encoding = tokenizer.encode(text)
    offsets = np.array(encoding.offsets, dtype="<u4").reshape(-1, 2)
    write_text(file, text)
    write_numbers(file, encoding.ids)
    write_numbers(file, offsets[:, 0])
    write_numbers(file, offsets[:, 1])
    for skips in (True, False):
        write_text(file, tokenizer.decode(encoding.ids, skip_special_tokens=skips))


def code_points(part, num_parts):
    """Each of a part of them, with neighbours of other classes; those below U+0500 are in every part."""
    chosen = [chr(code) for code in CODES if code % num_parts == part or code < 0x500]
    texts = []
    for begin in range(0, len(chosen), 2048):
        some = chosen[begin : begin + 2048]
        texts.append("".join(some))
        texts.append("".join(f"a{c}a {c} 1{c}\u0301'{c}\n" for c in some))
    return texts


def has_answer(tokenizer, text):
    """The wheel panics where a token took more white space than the one of white space that follows it has."""
    try:
        tokenizer.encode(text)
    except BaseException as error:  # PanicException is no Exception
        if "bad split" not in str(error):
            raise
        return False
    return True


def awkward(tokenizer, count, seed):
    """Short texts of added tokens, spaces, endings, marks and letters."""
    draw = random.Random(seed)
    parts = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    parts += ["word", "both", "<s", "x", "_", "é", "e\u0301", "fi", "\ufb01", "\u1100", "\u1161", "\u11a8", "\u0323", "\u0344", "\u2126", "1", "²",
              "the", "The", "THE", "'", "/", ".", "\u200d", "\u4e00", "\U0001f600", "\u0120", "\u0e33", "\u0f73", "\u1e9b\u0323"]
    parts += corpus.ENDINGS + list(corpus.SPACES) + [" "] * 8
    texts = ["".join(draw.choice(parts) for _ in range(draw.randint(1, 14))) for _ in range(count)]
    return [text for text in texts if has_answer(tokenizer, text)]


def main():
    folder, megabytes = Path(sys.argv[1]), float(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    pieces = corpus.texts(int(megabytes * 1e6))
    texts = [text for _, text in pieces]
    print("corpus of", sum(len(text.encode()) for text in texts), "bytes, sha256", corpus.content_hash(pieces))
    draw = random.Random(1)
    few = draw.sample(texts, max(1, len(texts) // 16)) + texts[-2:]  # and generated ones
    is_full = megabytes > 10
    num_parts = 1 if is_full else 64
    for index, (name, definition) in enumerate(oracle_tokenizers.all_tokenizers(few, TIKTOKEN).items()):
        (folder / f"{name}.json").write_text(definition)
        tokenizer = Tokenizer.from_str(definition)
        lost = oracle_tokenizers.LACKING if name == "few_bytes" else ""  # the wheel drops them
        with open(folder / f"{name}.bin", "wb") as file:
            for text in texts if name == "qwen" or is_full else few:
                write_record(file, tokenizer, text, lost)
            for text in code_points(index % num_parts, num_parts) + awkward(tokenizer, 20000 if is_full else 1500, index):
                write_record(file, tokenizer, text, lost)


main()
