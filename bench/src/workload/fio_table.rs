//! The jobs of fio by name, one for each file of `bench/fio`.

use super::{Bucket, Unit, Workload, fio, table};

/// A job on big files, over a link like that to a store in the same region.
const JOB: Workload = Workload {
    bucket: Bucket::Huge,
    latency_ms: 20,
    rate_mb: 90,
    deletes: true,
    renames: false,
    run: fio::run,
    ..table::PLAIN
};

/// All jobs, in the order of the table.
pub(crate) const FIO: &[Workload] = &[
    Workload {
        name: "fio_seq_read",
        about: "one file, 256 KiB reads in order",
        fio: Some(include_str!("../../fio/seq_read.fio")),
        ..JOB
    },
    Workload {
        name: "fio_seq_read_small",
        about: "one file of 5 MiB, 256 KiB reads in order",
        fio: Some(include_str!("../../fio/seq_read_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_seq_read_direct",
        about: "one file, 256 KiB reads in order, O_DIRECT",
        fio: Some(include_str!("../../fio/seq_read_direct.fio")),
        ..JOB
    },
    Workload {
        name: "fio_seq_read_direct_small",
        about: "one file of 5 MiB, 256 KiB reads in order, O_DIRECT",
        fio: Some(include_str!("../../fio/seq_read_direct_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_seq_read_4t",
        about: "four files, 256 KiB reads in order",
        fio: Some(include_str!("../../fio/seq_read_4t.fio")),
        ..JOB
    },
    Workload {
        name: "fio_seq_read_4t_small",
        about: "four files of 5 MiB, 256 KiB reads in order",
        fio: Some(include_str!("../../fio/seq_read_4t_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_seq_read_4t_direct",
        about: "four files, 256 KiB reads in order, O_DIRECT",
        fio: Some(include_str!("../../fio/seq_read_4t_direct.fio")),
        ..JOB
    },
    Workload {
        name: "fio_seq_read_4t_direct_small",
        about: "four files of 5 MiB, 256 KiB reads in order, O_DIRECT",
        fio: Some(include_str!("../../fio/seq_read_4t_direct_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_rand_read",
        about: "one file, 256 KiB reads at random",
        fio: Some(include_str!("../../fio/rand_read.fio")),
        ..JOB
    },
    Workload {
        name: "fio_rand_read_small",
        about: "one file of 5 MiB, 256 KiB reads at random",
        fio: Some(include_str!("../../fio/rand_read_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_rand_read_direct",
        about: "one file, 256 KiB reads at random, O_DIRECT",
        fio: Some(include_str!("../../fio/rand_read_direct.fio")),
        ..JOB
    },
    Workload {
        name: "fio_rand_read_direct_small",
        about: "one file of 5 MiB, 256 KiB reads at random, O_DIRECT",
        fio: Some(include_str!("../../fio/rand_read_direct_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_rand_read_4t",
        about: "four files, 256 KiB reads at random",
        fio: Some(include_str!("../../fio/rand_read_4t.fio")),
        ..JOB
    },
    Workload {
        name: "fio_rand_read_4t_small",
        about: "four files of 5 MiB, 256 KiB reads at random",
        fio: Some(include_str!("../../fio/rand_read_4t_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_rand_read_4t_direct",
        about: "four files, 256 KiB reads at random, O_DIRECT",
        fio: Some(include_str!("../../fio/rand_read_4t_direct.fio")),
        ..JOB
    },
    Workload {
        name: "fio_rand_read_4t_direct_small",
        about: "four files of 5 MiB, 256 KiB reads at random, O_DIRECT",
        fio: Some(include_str!("../../fio/rand_read_4t_direct_small.fio")),
        bucket: Bucket::Medium,
        ..JOB
    },
    Workload {
        name: "fio_seq_read_skip_17m",
        about: "one file, 256 MiB reads with gaps of 17 MiB",
        fio: Some(include_str!("../../fio/seq_read_skip_17m.fio")),
        ..JOB
    },
    Workload {
        name: "fio_seq_write",
        about: "one file, 256 KiB writes, stored",
        fio: Some(include_str!("../../fio/seq_write.fio")),
        bucket: Bucket::Write,
        ..JOB
    },
    Workload {
        name: "fio_seq_write_direct",
        about: "one file, 256 KiB writes, stored, O_DIRECT",
        fio: Some(include_str!("../../fio/seq_write_direct.fio")),
        bucket: Bucket::Write,
        ..JOB
    },
    Workload {
        name: "fio_mix_1r4w",
        about: "1 reading and 4 writing",
        fio: Some(include_str!("../../fio/mix_1r4w.fio")),
        ..JOB
    },
    Workload {
        name: "fio_mix_2r2w",
        about: "2 reading and 2 writing",
        fio: Some(include_str!("../../fio/mix_2r2w.fio")),
        ..JOB
    },
    Workload {
        name: "fio_mix_4r1w",
        about: "4 reading and 1 writing",
        fio: Some(include_str!("../../fio/mix_4r1w.fio")),
        ..JOB
    },
    Workload {
        name: "fio_ttfb",
        about: "first byte of a file of 64 GiB, O_DIRECT",
        fio: Some(include_str!("../../fio/ttfb.fio")),
        unit: Unit::Each,
        ..JOB
    },
    Workload {
        name: "fio_ttfb_small",
        about: "a file of one byte, O_DIRECT",
        fio: Some(include_str!("../../fio/ttfb_small.fio")),
        bucket: Bucket::Byte,
        unit: Unit::Each,
        ..JOB
    },
    Workload {
        name: "fio_time_to_write_one_byte_file",
        about: "a file of one byte created, stored, removed",
        fio: Some(include_str!("../../fio/time_to_write_one_byte_file.fio")),
        bucket: Bucket::Write,
        unit: Unit::Each,
        ..JOB
    },
];
