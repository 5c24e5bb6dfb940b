"""column_oracle.py FOLDER: writes Parquet and Arrow files with pyarrow, and folders with datasets; prints the rows as JSON."""
import datetime
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from datasets import Dataset, DatasetDict

folder = Path(sys.argv[1])
random.seed(0)
texts = ["".join(chr(random.choice([random.randrange(32, 127), random.randrange(0x400, 0x500), 0x1F600])) for _ in
         range(random.randrange(40))) for _ in range(2500)]
plain = pa.table({"id": list(range(2500)), "nested": [{"a": i, "b": [i, i]} for i in range(2500)], "text": texts})
kinds = {"text": plain["text"], "large": plain["text"].cast(pa.large_string()),
         "view": plain["text"].cast(pa.string_view()), "dictionary": plain["text"].dictionary_encode()}
table = plain.append_column("large", kinds["large"]).append_column("dictionary", kinds["dictionary"])

pa.parquet.write_table(table, folder / "a.parquet", row_group_size=700, compression="zstd", data_page_size=4096)
pa.parquet.write_table(table, folder / "snappy.parquet", row_group_size=3000, compression="snappy")
with pa.ipc.new_stream(folder / "stream.arrow", table.schema) as stream:
    stream.write_table(table, max_chunksize=300)
for name, compression in (("file", None), ("lz4", "lz4"), ("zstd", "zstd")):
    with pa.ipc.new_file(folder / f"{name}.arrow", plain.append_column("view", kinds["view"]).schema,
                         options=pa.ipc.IpcWriteOptions(compression=compression)) as file:
        file.write_table(plain.append_column("view", kinds["view"]), max_chunksize=300)

# Conversations: lists of structs, with null for a key that a message lacks, and texts that contain JSON.
chats = [[{"role": role, "content": random.choice(texts), "name": random.choice((None, "x"))} for role in
          ("user", "assistant")[:random.randrange(3)]] for _ in range(400)]
rows_of_chats = pa.table({"before": texts[:400], "nested": [{"a": i, "b": [i, i]} for i in range(400)],
                          "chats": chats, "json": [json.dumps(chat) for chat in chats],
                          "day": pa.array([0] * 400, pa.date32()), "nulls": pa.nulls(400),
                          "tools": [None, [], [{"name": "f", "strict": None}], [{"name": "g", "strict": True}]] * 100})
# Types that JSON lacks, in fields beside the texts of messages.
rich = {"content": "a", "at": datetime.datetime(2024, 5, 6, 7, 8, 9), "day": datetime.date(2024, 5, 6), "score": 0.5, "votes": -3,
        "flags": 200, "bytes": b"x", "tags": {"k": "v"}}
rich_type = pa.list_(pa.struct({"content": pa.string(), "at": pa.timestamp("us"), "day": pa.date32(), "score": pa.float32(),
                                "votes": pa.int8(), "flags": pa.uint8(), "bytes": pa.binary(), "tags": pa.map_(pa.string(), pa.string())}))
rows_of_chats = rows_of_chats.append_column("rich", pa.array([[], [{**rich, "tags": list(rich["tags"].items())}]] * 200, rich_type))
pa.parquet.write_table(rows_of_chats, folder / "chats.parquet", row_group_size=150)
with pa.ipc.new_file(folder / "chats.arrow", rows_of_chats.schema) as file:
    file.write_table(rows_of_chats, max_chunksize=150)
bad_bytes = pa.StructArray.from_arrays([pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"a\xff"]).buffers())], ["content"])
bad_chats = pa.table({"chats": pa.chunked_array([pa.ListArray.from_arrays([0, 1, 2], bad_bytes),
                                                pa.array([None], pa.list_(bad_bytes.type))])})
pa.parquet.write_table(bad_chats, folder / "bad_chats.parquet")

# Bad rows and files.
bytes_type = pa.Array.from_buffers(pa.string(), 3, [None, *pa.array([b"ok", b"a\xff", b"z"]).buffers()[1:]])
bad = pa.table({"text": pa.chunked_array([pa.array(["one", None, "three"]), bytes_type]), "number": range(6)})
pa.parquet.write_table(bad, folder / "bad_rows.parquet")
with pa.ipc.new_stream(folder / "bad_rows.arrow", bad.schema) as stream:
    stream.write_table(bad)
pa.parquet.write_table(bad.slice(0, 0), folder / "empty.parquet")
whole = (folder / "a.parquet").read_bytes()
(folder / "cut.parquet").write_bytes(whole[:-100])
damaged = bytearray(whole)
column = pa.parquet.ParquetFile(folder / "a.parquet").metadata.row_group(1)
start = next(column.column(i) for i in range(column.num_columns) if column.column(i).path_in_schema == "text")
for i in range(start.data_page_offset, start.data_page_offset + 400):
    damaged[i] ^= 0x5A
(folder / "damaged.parquet").write_bytes(damaged)
stream = (folder / "stream.arrow").read_bytes()
(folder / "cut.arrow").write_bytes(stream[:len(stream) // 2])

# Dataset folders.
rows = Dataset.from_dict({"text": texts, "id": list(range(2500))})
rows.save_to_disk(folder / "saved", num_shards=3)
DatasetDict({"train": rows.select(range(100)), "test": rows.select(range(100, 150))}).save_to_disk(folder / "splits")
rows.select([5, 3, 1]).save_to_disk(folder / "selected")
hub = folder / "hub" / "data"
hub.mkdir(parents=True)
rows.select(range(10)).to_parquet(hub / "train-00000-of-00002.parquet")
rows.select(range(10, 20)).to_parquet(hub / "train-00001-of-00002.parquet")
rows.select(range(20, 30)).to_parquet(hub / "test-00000-of-00001.parquet")
from datasets import load_dataset  # noqa: E402

loaded = load_dataset(str(folder / "hub"), cache_dir=str(folder / "cache"))
loaded["test"].save_to_disk(folder / "one")
cached = Path(loaded["train"].cache_files[0]["filename"]).parent
print(json.dumps({"texts": texts, "chats": chats, "cached": str(cached)}))
