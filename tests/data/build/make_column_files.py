"""make_column_files.py FILE.jsonl FOLDER: the rows as FOLDER/a.parquet, and as two streams of Arrow, FOLDER/a-0.arrow and a-1."""
import json
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

source, folder = sys.argv[1:]
rows = pa.Table.from_pylist([json.loads(line) for line in open(source, encoding="utf-8")])
pa.parquet.write_table(rows, folder + "/a.parquet", row_group_size=20)
half = len(rows) // 2
for i, part in enumerate((rows.slice(0, half), rows.slice(half))):
    with pa.ipc.new_stream(f"{folder}/a-{i}.arrow", part.schema) as stream:
        stream.write_table(part, max_chunksize=20)
