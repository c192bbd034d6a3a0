"""polars writes a table."""

import kit
import polars as pl


def run(folder, small):
    pl.DataFrame({"n": range(200_000), "word": [f"w{n % 97}" for n in range(200_000)]}).write_parquet(f"{folder}/table.parquet")
    return verify(folder, small)


def verify(folder, small):
    return kit.digest(repr(pl.read_parquet(f"{folder}/table.parquet").rows()).encode())


kit.main(lambda folder, small: None, run, verify)
