"""samtools, by pysam, reads the alignments of some regions by the index."""

import kit
import numpy as np
import pysam

CHROMOSOME = 50_000_000


def prepare(folder, small):
    random = np.random.default_rng(8)
    count = 100_000 if small else 800_000
    header = {"HD": {"VN": "1.6", "SO": "coordinate"}, "SQ": [{"SN": "chr1", "LN": CHROMOSOME}]}
    starts = np.sort(random.integers(0, CHROMOSOME - 200, count))
    with pysam.AlignmentFile(f"{folder}/reads.bam", "wb", header=header) as file:
        for n, start in enumerate(starts):
            read = pysam.AlignedSegment(file.header)
            read.query_name, read.reference_id, read.reference_start = f"r{n}", 0, int(start)
            read.query_sequence = "".join(random.choice(list("ACGT"), 100))
            read.mapping_quality, read.cigartuples = 60, [(0, 100)]
            file.write(read)
    pysam.index(f"{folder}/reads.bam")


def run(folder, small):
    with pysam.AlignmentFile(f"{folder}/reads.bam", "rb") as file:
        regions = (file.fetch("chr1", at, at + 20_000) for at in range(1_000_000, CHROMOSOME, 5_000_000))
        return kit.digest(*(read.to_string().encode() for region in regions for read in region))


kit.main(prepare, run)
