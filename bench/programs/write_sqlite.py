"""SQLite keeps a database."""

import contextlib
import sqlite3

import kit


def run(folder, small):
    with contextlib.closing(sqlite3.connect(f"{folder}/base.sqlite")) as base, base:
        base.execute("CREATE TABLE t (n INTEGER, word TEXT)")
        base.executemany("INSERT INTO t VALUES (?, ?)", ((n, f"w{n}") for n in range(1000)))
    return verify(folder, small)


def verify(folder, small):
    with contextlib.closing(sqlite3.connect(f"file:{folder}/base.sqlite?mode=ro", uri=True)) as base:
        return kit.digest(repr(base.execute("SELECT * FROM t ORDER BY n").fetchall()).encode())


kit.main(lambda folder, small: None, run, verify)
