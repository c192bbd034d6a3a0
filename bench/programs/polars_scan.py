"""polars scans a table lazily, for one column where another is large."""

import kit
import polars as pl
import tables


def run(folder, small):
    frame = pl.scan_parquet(f"{folder}/table.parquet").filter(pl.col("c05") > 0.5).select("key").collect()
    return kit.digest(frame["key"].to_numpy().tobytes())


kit.main(tables.prepare, run, needed=lambda folder, small: tables.bytes_of(f"{folder}/table.parquet", ["key", "c05"]))
