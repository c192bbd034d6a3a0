"""pyarrow reads the schema of a table."""

import kit
import pyarrow.parquet as pq
import tables


def run(folder, small):
    return kit.digest(str(pq.read_schema(f"{folder}/table.parquet")).encode())


def direct(place, small):
    store, bucket = kit.arrow_s3(place)
    return kit.digest(str(pq.read_schema(f"{bucket}/table.parquet", filesystem=store)).encode())


kit.main(tables.prepare, run, needed=lambda folder, small: tables.bytes_of(f"{folder}/table.parquet", []), direct=direct)
