"""DuckDB keeps a database."""

import duckdb
import kit


def run(folder, small):
    with duckdb.connect(f"{folder}/base.duckdb") as base:
        base.execute("CREATE TABLE t AS SELECT i, i * 7 AS n FROM range(100000) t(i)")
    return verify(folder, small)


def verify(folder, small):
    with duckdb.connect(f"{folder}/base.duckdb", read_only=True) as base:
        return kit.digest(repr(base.execute("SELECT sum(i), sum(n), count(*) FROM t").fetchall()).encode())


kit.main(lambda folder, small: None, run, verify)
