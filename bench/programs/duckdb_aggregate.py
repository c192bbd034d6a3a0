"""DuckDB sums one column by another."""

import duckdb
import kit
import tables

QUERY = "SELECT key, sum(CAST(c11 * 1e9 AS BIGINT)) FROM '{}/table.parquet' GROUP BY key ORDER BY key"


def run(folder, small):
    with duckdb.connect() as base:
        return kit.digest(repr(base.execute(QUERY.format(folder)).fetchall()).encode())


kit.main(tables.prepare, run, needed=lambda folder, small: tables.bytes_of(f"{folder}/table.parquet", ["key", "c11"]))
