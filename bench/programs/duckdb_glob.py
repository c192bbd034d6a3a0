"""DuckDB sums a column over many small tables that a pattern names."""

import glob

import duckdb
import kit
import pyarrow.dataset
import tables

QUERY = "SELECT count(*), sum(CAST(c03 * 1e9 AS BIGINT)) FROM {}"


def run(folder, small):
    with duckdb.connect() as base:
        return kit.digest(repr(base.execute(QUERY.format(f"'{folder}/*.parquet'")).fetchall()).encode())


def direct(place, small):
    store, bucket = kit.arrow_s3(place)
    with duckdb.connect() as base:
        base.register("data", pyarrow.dataset.dataset(bucket, filesystem=store, format="parquet"))
        return kit.digest(repr(base.execute(QUERY.format("data")).fetchall()).encode())


def needed(folder, small):
    return sum(tables.bytes_of(path, ["c03"]) for path in glob.glob(f"{folder}/*.parquet"))


kit.main(tables.prepare_many, run, needed=needed, direct=direct)
