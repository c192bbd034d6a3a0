"""pyarrow writes a table."""

import kit
import pyarrow.parquet as pq
import tables


def run(folder, small):
    pq.write_table(tables.table(20_000, 24), f"{folder}/table.parquet")
    return verify(folder, small)


def verify(folder, small):
    table = pq.read_table(f"{folder}/table.parquet")
    return kit.digest(*(column.combine_chunks().to_numpy().tobytes() for column in table.columns))


kit.main(lambda folder, small: None, run, verify)
