"""utf8_oracle.py FILE: byte strings, most of them no UTF-8, as Python and the tokenizers wheel take them.

Records of: the bytes, the bytes after decode(errors="replace"), each after its length (u32); the first bad byte (i32; -1: none).
"""
import random
import struct
import sys

from tokenizers import Tokenizer
from tokenizers.models import BPE

BYTES = (0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1,
         0xF4, 0xF5, 0xFF)  # fmt: skip
PIECES = ("a", "\u00e9", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff")


def draw():
    parts = []
    for _ in range(random.randrange(8)):
        piece = random.choice(PIECES).encode()
        parts.append(random.choice((piece, piece[:-1], bytes([random.choice(BYTES)]), bytes([random.randrange(256)]))))
    return b"".join(parts)


def main():
    random.seed(0)
    short = [bytes([a, b]) for a in range(256) for b in BYTES] + [bytes([a, b, c]) for a in BYTES for b in BYTES for c in BYTES]
    with open(sys.argv[1], "wb") as file:
        for data in short + [draw() for _ in range(20000)]:
            try:
                data.decode()
                bad = -1
            except UnicodeDecodeError as error:
                bad = error.start
            replaced = data.decode(errors="replace").encode()
            file.write(struct.pack("<I", len(data)) + data + struct.pack("<I", len(replaced)) + replaced + struct.pack("<i", bad))
    tokenizer = Tokenizer(BPE())
    for text in (b"a\xff", "\ud800"):  # the wheel takes neither bytes nor half of a surrogate pair
        try:
            tokenizer.encode(text)
        except (TypeError, UnicodeEncodeError):
            continue
        sys.exit(f"the wheel encodes {text!r}")


main()
