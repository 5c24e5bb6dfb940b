"""make_bad_files.py FOLDER: Parquet and Arrow files with something wrong, each beside a good one of two rows."""
import sys
from pathlib import Path

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
at = damaged.rindex(b"row 100")  # offsets of the second batch's texts stand before
damaged[at - 16:at - 8] = b"\xff\xff\xff\x7f" * 2
(folder / "damaged.arrow").write_bytes(damaged)
