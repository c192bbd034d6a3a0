"""DuckDB sums a column over many small tables that a pattern names."""

import glob

import duckdb
import kit
import tables

QUERY = "SELECT count(*), sum(CAST(c03 * 1e9 AS BIGINT)) FROM '{}/*.parquet'"


def run(folder, small):
    with duckdb.connect() as base:
        return kit.digest(repr(base.execute(QUERY.format(folder)).fetchall()).encode())


def needed(folder, small):
    return sum(tables.bytes_of(path, ["c03"]) for path in glob.glob(f"{folder}/*.parquet"))


kit.main(tables.prepare_many, run, needed=needed)
