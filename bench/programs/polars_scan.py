"""polars scans a table lazily, for one column where another is large."""

import kit
import polars as pl
import tables


def digest(frame):
    frame = frame.filter(pl.col("c05") > 0.5).select("key").collect()
    return kit.digest(frame["key"].to_numpy().tobytes())


def run(folder, small):
    return digest(pl.scan_parquet(f"{folder}/table.parquet"))


def direct(place, small):
    endpoint, bucket = place.rsplit("/", 1)
    options = {"aws_endpoint_url": endpoint, "aws_allow_http": "true", "aws_region": kit.REGION}
    options |= {"aws_access_key_id": kit.KEY, "aws_secret_access_key": kit.SECRET}
    return digest(pl.scan_parquet(f"s3://{bucket}/table.parquet", storage_options=options))


def needed(folder, small):
    return tables.bytes_of(f"{folder}/table.parquet", ["key", "c05"])


kit.main(tables.prepare, run, needed=needed, direct=direct)
