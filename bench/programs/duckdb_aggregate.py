"""DuckDB sums one column by another."""

import duckdb
import kit
import pyarrow.dataset
import tables

QUERY = "SELECT key, sum(CAST(c11 * 1e9 AS BIGINT)) FROM {} GROUP BY key ORDER BY key"


def run(folder, small):
    with duckdb.connect() as base:
        return kit.digest(repr(base.execute(QUERY.format(f"'{folder}/table.parquet'")).fetchall()).encode())


def direct(place, small):
    store, bucket = kit.arrow_s3(place)
    with duckdb.connect() as base:
        base.register("data", pyarrow.dataset.dataset(f"{bucket}/table.parquet", filesystem=store))
        return kit.digest(repr(base.execute(QUERY.format("data")).fetchall()).encode())


def needed(folder, small):
    return tables.bytes_of(f"{folder}/table.parquet", ["key", "c11"])


kit.main(tables.prepare, run, needed=needed, direct=direct)
