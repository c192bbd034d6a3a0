"""pyarrow reads 2 of 40 columns of a table."""

import kit
import pyarrow.parquet as pq
import tables

COLUMNS = ["c07", "c31"]


def run(folder, small):
    table = pq.read_table(f"{folder}/table.parquet", columns=COLUMNS)
    return kit.digest(*(column.combine_chunks().to_numpy().tobytes() for column in table.columns))


kit.main(tables.prepare, run, needed=lambda folder, small: tables.bytes_of(f"{folder}/table.parquet", COLUMNS))
