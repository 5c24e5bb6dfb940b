"""Text of many kinds and languages from this machine, the same at each run: manual pages, package documentation, headers,
sources of wheels, and generated text of all scripts.

    corpus.py MEGABYTES      prints how much of what, and the hash of all
"""

import gzip
import hashlib
import random
import sys
import sysconfig
import unicodedata
from pathlib import Path

SOURCES = {  # folder: how many parts of ten
    "/usr/share/man": 4,
    "/usr/share/doc": 2,
    "/usr/include": 1,
    sysconfig.get_paths()["purelib"]: 1,
}
SUFFIXES = {".gz", ".h", ".py", ".txt", ".md", ".rst", ".html", ".json", ".copyright", ""}
LARGEST = 200_000  # bytes of one file
SPACES = " \t\n\r\v\f\u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000"
ENDINGS = "'s 't 're 've 'm 'll 'd 'S 'RE 'lL \u2019s '\u017f 'x".split(" ")


def text_of(path):
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return data[:LARGEST].decode("utf-8", errors="strict" if len(data) <= LARGEST else "ignore")
    except (OSError, UnicodeDecodeError, EOFError, gzip.BadGzipFile):
        return None


def files(folder):
    """In an order by name's hash: a part of them is of all kinds."""
    found = (path for path in Path(folder).rglob("*") if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink())
    return sorted(found, key=lambda path: hashlib.md5(str(path).encode()).hexdigest())


def letters():
    """Assigned code points by the first word of their name: LATIN, CJK, ..."""
    scripts = {}
    for code in range(0x110000):
        name = unicodedata.name(chr(code), None)
        if name:
            scripts.setdefault(name.split()[0].split("-")[0], []).append(chr(code))
    return list(scripts.values())


def generated(size, seed):
    """Words of one script each, numbers, spaces of all kinds, endings, marks, and now and then any code point."""
    draw = random.Random(seed)
    scripts = letters()
    pieces = []
    length = 0
    while length < size:
        kind = draw.random()
        if kind < 0.5:
            script = draw.choice(scripts)
            piece = "".join(draw.choice(script) for _ in range(draw.randint(1, 9)))
        elif kind < 0.6:
            piece = str(draw.randint(0, 10 ** draw.randint(1, 12)))
        elif kind < 0.75:
            piece = "".join(draw.choice(SPACES) for _ in range(draw.randint(1, 4)))
        elif kind < 0.85:
            piece = draw.choice(ENDINGS)
        elif kind < 0.93:
            piece = "".join(draw.choice("aeiou\u1100\u1161\u11a8") + chr(draw.randint(0x300, 0x36F)) for _ in range(draw.randint(1, 4)))
        else:
            code = draw.randrange(0x110000 - 0x800)
            piece = chr(code if code < 0xD800 else code + 0x800)
        pieces.append(piece)
        if draw.random() < 0.5:
            pieces.append(" ")
        length += len(piece.encode()) + 1
    return "".join(pieces)


def texts(size):
    """[(kind, text)] of about `size` bytes in all."""
    result = []
    for folder, parts in SOURCES.items():
        left = size * parts // 10
        for path in files(folder):
            text = text_of(path)
            if text:
                result.append((folder, text))
                left -= len(text.encode())
            if left <= 0:
                break
    have = sum(len(text.encode()) for _, text in result)
    result += [("generated", generated(min(size - have, 2_000_000) // 8, seed)) for seed in range(8)]
    return result


def content_hash(pieces):
    return hashlib.sha256("\0".join(text for _, text in pieces).encode()).hexdigest()


if __name__ == "__main__":
    pieces = texts(int(float(sys.argv[1]) * 1e6))
    for kind in {kind for kind, _ in pieces}:
        chosen = [text for name, text in pieces if name == kind]
        print(f"{kind}: {len(chosen)} texts, {sum(len(text.encode()) for text in chosen)} bytes")
    print("sha256", content_hash(pieces))
