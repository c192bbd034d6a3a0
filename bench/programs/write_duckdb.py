"""DuckDB copies the answer of a query to a table."""

import duckdb
import kit


def run(folder, small):
    with duckdb.connect() as base:
        base.execute(f"COPY (SELECT i, i * 7 AS n FROM range(200000) t(i)) TO '{folder}/table.parquet' (FORMAT parquet)")
    return verify(folder, small)


def verify(folder, small):
    with duckdb.connect() as base:
        return kit.digest(repr(base.execute(f"SELECT sum(i), sum(n), count(*) FROM '{folder}/table.parquet'").fetchall()).encode())


kit.main(lambda folder, small: None, run, verify)
