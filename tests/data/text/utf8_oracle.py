"""Prints byte strings in hex and where Python finds them to be no UTF-8 (-1: nowhere)."""
import itertools
import json
import random

random.seed(0)
strings = [bytes(pair) for pair in itertools.product((0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xFF), repeat=2)]
for lead in range(0xE0, 0x100):
    strings += [bytes((lead, second, 0x80, 0x80)) for second in range(0x70, 0xD0)]
text = "".join(chr(c) for c in random.sample([c for c in range(0x110000) if not 0xD800 <= c < 0xE000], 4000)).encode()
strings += [text] + [text[i:i + random.randrange(40)] for i in random.sample(range(len(text)), 500)]


def first_invalid(data):
    try:
        data.decode("utf-8")
        return -1
    except UnicodeDecodeError as error:
        return error.start


print(json.dumps([(data.hex(), first_invalid(data)) for data in strings]))
