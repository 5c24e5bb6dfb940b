"""make_column_files.py FILE.jsonl FOLDER: the rows as FOLDER/a.parquet and as a dataset in FOLDER/saved."""
import json
import sys

import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset

source, folder = sys.argv[1:]
rows = [json.loads(line) for line in open(source, encoding="utf-8")]
pa.parquet.write_table(pa.Table.from_pylist(rows), folder + "/a.parquet", row_group_size=20)
Dataset.from_list(rows).save_to_disk(folder + "/saved", num_shards=2)
