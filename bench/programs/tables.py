"""Parquet files for the programs that read tables."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 40


def table(rows, seed):
    """`COLUMNS` columns of numbers that don't compress."""
    random = np.random.default_rng(seed)
    columns = {f"c{n:02}": random.random(rows) for n in range(COLUMNS - 1)}
    return pa.table({"key": np.arange(rows, dtype=np.int64) % 97, **columns})


def write_table(path, rows, seed, group):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pq.write_table(table(rows, seed), path, row_group_size=group, compression=None, use_dictionary=False)


def prepare(folder, small):
    """One table: 1.3 MiB in all columns of a group, 40 MiB if small, else 320 MiB."""
    rows = 131_072 if small else 1_048_576
    write_table(f"{folder}/table.parquet", rows, 1, rows // 8)


def prepare_many(folder, small):
    """Many small tables."""
    for n in range(16 if small else 64):
        write_table(f"{folder}/part-{n:03}.parquet", 4096, n, 4096)


def bytes_of(path, columns):
    """The bytes of these columns and of the footer."""
    meta = pq.ParquetFile(path).metadata
    chunks = (meta.row_group(group).column(n) for group in range(meta.num_row_groups) for n in range(meta.num_columns))
    return meta.serialized_size + 8 + sum(c.total_compressed_size for c in chunks if c.path_in_schema in columns)
