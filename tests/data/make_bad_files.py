"""make_bad_files.py FOLDER: Parquet and Arrow files with something wrong, each beside a good one of two rows; and lines
of JSON and ids of tokens in other forms."""
import bz2
import gzip
import lzma
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

folder = Path(sys.argv[1])


def write(name, table, **options):
    pa.parquet.write_table(table, folder / f"{name}.parquet", **options)
    with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=options.get("row_group_size"))


write("good", pa.table({"text": ["first", "second"], "number": [1, 2]}))
write("empty", pa.table({"text": pa.array([], pa.string())}))
write("no_columns", pa.table({}))
write("a_ids", pa.table({"number": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}))
write("nulls", pa.table({"text": pa.array([None, None], pa.null())}))
write("null", pa.table({"text": ["one", None, "three"]}))
invalid = pa.Array.from_buffers(pa.string(), 3, [None, *pa.array([b"ok", b"a\xff", b"z"]).buffers()[1:]])
write("invalid", pa.table({"text": invalid}))
write("long", pa.table({"text": ["one", "two", "x" * 40]}))
write("whole", pa.table({"text": [f"row {i}" for i in range(300)]}), row_group_size=100, compression="none",
      use_dictionary=False)
for suffix in ("parquet", "arrow"):
    whole = (folder / f"whole.{suffix}").read_bytes()
    (folder / f"cut.{suffix}").write_bytes(whole[:-150])
    (folder / f"none.{suffix}").write_bytes(b"")
damaged = bytearray((folder / "whole.parquet").read_bytes())
start = pa.parquet.ParquetFile(folder / "whole.parquet").metadata.row_group(1).column(0).data_page_offset
damaged[start:start + 20] = b"\xff" * 20
(folder / "damaged.parquet").write_bytes(damaged)
damaged = bytearray((folder / "whole.arrow").read_bytes())
at = damaged.rindex(b"row 100")  # the offsets of the second batch's texts precede its texts
damaged[at - 16:at - 8] = b"\xff\xff\xff\x7f" * 2
(folder / "damaged.arrow").write_bytes(damaged)

pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 123456\n"
(folder / "pointer.parquet").write_text(pointer)

# Other formats than UTF-8 text.
lines = '{"text": "one"}\n{"text": "two"}\n'
ids = np.arange(1, 81)
for name, compress in (("gzip", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
    (folder / f"{name}.jsonl").write_bytes(compress(lines.encode()))
for name in ("zstd", "lz4"):
    with pa.CompressedOutputStream(pa.OSFile(str(folder / f"{name}.jsonl"), "wb"), name) as stream:
        stream.write(lines.encode())
for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
    (folder / f"{encoding}.jsonl").write_bytes(lines.encode(encoding))
with zipfile.ZipFile(folder / "zip.jsonl", "w") as archive:
    archive.writestr("a.jsonl", lines)
with tarfile.open(folder / "tar.jsonl", "w") as archive:
    archive.add(folder / "gzip.jsonl", "a.jsonl")
(folder / "parquet.jsonl").write_bytes((folder / "good.parquet").read_bytes())
with pa.ipc.new_file(folder / "arrow.jsonl", pa.schema([("text", pa.string())])) as file:
    file.write_table(pa.table({"text": ["one"]}))
(folder / "gzip.txt").write_bytes(gzip.compress(b"one"))
(folder / "utf-16.txt").write_bytes("one".encode("utf-16"))
np.save(folder / "ids.npy", ids.astype("<u2"))
(folder / "npy.bin").write_bytes((folder / "ids.npy").read_bytes())
(folder / "gzip.bin").write_bytes(gzip.compress(ids.astype("u1").tobytes()))
ids[:32].astype("<u4").tofile(folder / "wide.bin")
ids.astype("<i8").tofile(folder / "wider.bin")
