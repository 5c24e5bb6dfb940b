#!/usr/bin/env python3
"""What the tokenizers wheel knows of each code point.

    code_point_oracle.py classes FILE    names of sets, and for each 0x110000 bytes: 1 for members, 2 for what was not asked,
                                         the most of the planes without characters
    code_point_oracle.py forms FILE      for NFC, NFD, NFKC, NFKD: texts of code points and pairs, each before its form
"""

import random
import sys
import unicodedata

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
ASKED = [code for code in CODES if code < 0x40000 or 0xE0000 <= code < 0xE1000 or code % 61 == 0]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()


def members(pattern):
    """Code points that the pattern matches: Split removes them."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    flags = np.full(0x110000, 2, dtype=np.uint8)
    flags[ASKED] = 1
    for begin in range(0, len(ASKED), 0x4000):
        codes = np.array(ASKED[begin : begin + 0x4000])
        for _, (first, end) in split.pre_tokenize_str("".join(map(chr, codes))):
            flags[codes[first:end]] = 0
    return flags


def words_around_added_tokens():
    """Code points behind which a single-word token is not found."""
    tokenizer = Tokenizer(models.BPE({"<unk>": 0}, [], unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken("x", single_word=True, normalized=False)])
    flags = np.full(0x110000, 2, dtype=np.uint8)
    flags[ASKED] = 1
    for begin in range(0, len(ASKED), 0x1000):
        codes = ASKED[begin : begin + 0x1000]
        encoding = tokenizer.encode("".join(f"{chr(code)}x " for code in codes))
        for token, (start, _) in zip(encoding.ids, encoding.offsets):
            if token == 1 and start % 3 == 1:  # not a code point that is itself an x
                flags[codes[start // 3]] = 0
    return flags


def spaces_around_added_tokens():
    tokenizer = Tokenizer(models.BPE({"x": 0}, []))
    tokenizer.add_tokens([AddedToken("x", rstrip=True, normalized=False)])
    flags = np.full(0x110000, 2, dtype=np.uint8)
    flags[ASKED] = 0
    for code in ASKED:
        if code < 0x10000:  # none beyond
            flags[code] = tokenizer.encode("x" + chr(code)).offsets == [(0, 2)]
    return flags


def write_classes(file):
    sets = {name: members(rf"\p{{{name}}}") for name in CATEGORIES}
    sets |= {"space": members(r"\s"), "word": members(r"\w"), "space of tokens": spaces_around_added_tokens()}
    sets["word of tokens"] = words_around_added_tokens()
    for name, flags in sets.items():
        file.write(name.encode().ljust(16) + flags.tobytes())


def entry(text):
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def write_forms(file):
    draw = random.Random(3)
    marks = [chr(code) for code in CODES if unicodedata.combining(chr(code))]
    others = [chr(code) for code in CODES if unicodedata.decomposition(chr(code)) or 0x1100 <= code < 0x1200]
    texts = [chr(code) for code in CODES]
    texts += ["".join(draw.choice(draw.choice((marks, others))) for _ in range(draw.randint(2, 6))) for _ in range(60000)]
    texts += [f"a\u0345{mark}\u0334" for mark in marks]
    texts.remove("\n")  # separates the others: no form joins characters around it
    entries = [entry(text) for text in texts]
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        form = getattr(normalizers, name)()
        for begin in range(0, len(texts), 0x1000):
            normalized = form.normalize_str("\n".join(texts[begin : begin + 0x1000])).split("\n")
            given = entries[begin : begin + 0x1000]
            for text, result in zip(given, normalized, strict=True):
                file.write(text + entry(result))


with open(sys.argv[2], "wb") as output:
    {"classes": write_classes, "forms": write_forms}[sys.argv[1]](output)
