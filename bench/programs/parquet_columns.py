"""pyarrow reads 2 of 40 columns of a table."""

import kit
import pyarrow.parquet as pq
import tables

COLUMNS = ["c07", "c31"]


def digest(table):
    return kit.digest(*(column.combine_chunks().to_numpy().tobytes() for column in table.columns))


def run(folder, small):
    return digest(pq.read_table(f"{folder}/table.parquet", columns=COLUMNS))


def direct(place, small):
    store, bucket = kit.arrow_s3(place)
    return digest(pq.read_table(f"{bucket}/table.parquet", columns=COLUMNS, filesystem=store))


kit.main(
    tables.prepare, run, needed=lambda folder, small: tables.bytes_of(f"{folder}/table.parquet", COLUMNS), direct=direct
)
