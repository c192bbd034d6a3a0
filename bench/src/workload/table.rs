//! The workloads by name.

use super::{Bucket, Unit, Workload, mapped, mixed, names, read, rename, write};
use crate::floor::Floor;
use crate::null_fs::Transport;

const NULL_FS_DEV: Floor = Floor::NullFs(Transport::Dev);
const NULL_FS_FUSER: Floor = Floor::NullFs(Transport::Fuser);

/// The simplest workload. The others override some of its fields.
pub(super) const PLAIN: Workload = Workload {
    name: "",
    about: "",
    bucket: Bucket::Big,
    latency_ms: 0,
    rate_mb: 0,
    tls: false,
    cache: false,
    memory_mib: None,
    deletes: false,
    renames: false,
    fio: None,
    ttl_s: None,
    unit: Unit::GiB,
    floors: &[],
    run: read::sequential,
};

/// All workloads, in the order of the table.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        name: "seq_read",
        about: "one file, 1 MiB reads",
        floors: &[NULL_FS_DEV, NULL_FS_FUSER, Floor::Receive, Floor::PageCache, Floor::Memcpy],
        ..PLAIN
    },
    Workload {
        name: "seq_read_fifth",
        about: "one file, 1 MiB reads, after four others that were read once",
        floors: &[NULL_FS_DEV, Floor::Receive],
        run: read::fifth,
        ..PLAIN
    },
    Workload {
        name: "seq_read_4",
        about: "four files at once, 1 MiB reads",
        floors: &[NULL_FS_DEV, NULL_FS_FUSER, Floor::Receive],
        run: read::sequential_4,
        ..PLAIN
    },
    Workload {
        name: "seq_read_4_small_memory",
        about: "the same with 128 MiB of memory for data",
        memory_mib: Some(128),
        run: read::sequential_4,
        ..PLAIN
    },
    Workload {
        name: "seq_read_direct",
        about: "one file, 1 MiB reads, O_DIRECT",
        floors: &[NULL_FS_DEV, NULL_FS_FUSER, Floor::Receive],
        run: read::direct,
        ..PLAIN
    },
    Workload {
        name: "seq_read_slow",
        about: "one file, 1 MiB reads; 20 ms a request, 90 MB/s a connection",
        latency_ms: 20,
        rate_mb: 90,
        ..PLAIN
    },
    Workload {
        name: "seq_read_tls",
        about: "one file, 1 MiB reads, over TLS 1.3",
        tls: true,
        floors: &[Floor::Receive],
        ..PLAIN
    },
    Workload {
        name: "random_4k",
        about: "4 KiB reads by 16 threads in a file of 64 GiB; 20 ms a request",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::PerSecond,
        run: read::random,
        ..PLAIN
    },
    Workload {
        name: "random_4k_mmap",
        about: "the same by page faults in a mapping, MADV_RANDOM",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::PerSecond,
        run: mapped::random,
        ..PLAIN
    },
    Workload {
        name: "ranges",
        about: "reads of 8 MiB here and there by four threads; 20 ms a request",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::Each,
        run: read::ranges,
        ..PLAIN
    },
    Workload {
        name: "ranges_stalled",
        about: "the same where one GET in a hundred waits 5 s for its answer",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::Each,
        run: read::ranges_stalled,
        ..PLAIN
    },
    Workload {
        name: "small_files",
        about: "files of 100 KiB one after another, cold",
        bucket: Bucket::Small,
        unit: Unit::PerSecond,
        run: read::small_cold,
        ..PLAIN
    },
    Workload {
        name: "small_files_listed",
        about: "the same after a listing, names kept for 60 s",
        bucket: Bucket::Small,
        ttl_s: Some(60),
        unit: Unit::PerSecond,
        run: read::small_listed,
        ..PLAIN
    },
    Workload {
        name: "small_files_16",
        about: "the same cold by 16 threads; 20 ms a request",
        bucket: Bucket::Small,
        latency_ms: 20,
        unit: Unit::PerSecond,
        run: read::small_16,
        ..PLAIN
    },
    Workload {
        name: "small_files_16_learned",
        about: "files of 100 KiB cold by 16 threads, after 32 others were read; 20 ms a request",
        bucket: Bucket::Small,
        latency_ms: 20,
        unit: Unit::PerSecond,
        run: read::small_16_learned,
        ..PLAIN
    },
    Workload {
        name: "first_byte",
        about: "first 4 KiB of a cold file; 20 ms a request",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::Each,
        run: read::first_byte,
        ..PLAIN
    },
    Workload {
        name: "first_byte_listed",
        about: "the same after a listing",
        bucket: Bucket::Huge,
        latency_ms: 20,
        unit: Unit::Each,
        run: read::first_byte_listed,
        ..PLAIN
    },
    Workload {
        name: "list_names",
        about: "all names of one big directory; 20 ms a request",
        bucket: Bucket::Names,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list,
        ..PLAIN
    },
    Workload {
        name: "list_hex",
        about: "the same, names by chance",
        bucket: Bucket::NamesHex,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list,
        ..PLAIN
    },
    Workload {
        name: "list_dates",
        about: "the same names in folders of 100, by year, month and day; 20 ms a request",
        bucket: Bucket::NamesDates,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list,
        ..PLAIN
    },
    Workload {
        name: "list_deep",
        about: "all names of one big directory that is eight folders down; 20 ms a request",
        bucket: Bucket::NamesDeep,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list,
        ..PLAIN
    },
    Workload {
        name: "list_names_stat",
        about: "the names of list_names, every file looked at",
        bucket: Bucket::Names,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list_stat,
        ..PLAIN
    },
    Workload {
        name: "list_hex_stat",
        about: "the names of list_hex, every file looked at",
        bucket: Bucket::NamesHex,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list_stat,
        ..PLAIN
    },
    Workload {
        name: "list_deep_stat",
        about: "the names of list_deep, every file looked at",
        bucket: Bucket::NamesDeep,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list_stat,
        ..PLAIN
    },
    Workload {
        name: "list_million",
        about: "ten times the names of list_names, and the memory that they take; 20 ms a request",
        bucket: Bucket::Million,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::list_and_forget,
        ..PLAIN
    },
    Workload {
        name: "walk",
        about: "a tree of small folders, every file looked at",
        bucket: Bucket::Tree,
        unit: Unit::Whole,
        run: names::walk,
        ..PLAIN
    },
    Workload {
        name: "walk_slow",
        about: "10,000 files in 400 folders, every file looked at; 20 ms a request",
        bucket: Bucket::Folders,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::walk,
        ..PLAIN
    },
    Workload {
        name: "walk_big",
        about: "a tree of small folders of ten files, twenty times the one of walk; 20 ms a request",
        bucket: Bucket::TreeBig,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::walk,
        ..PLAIN
    },
    Workload {
        name: "du",
        about: "du of one directory of 5,000 files; 20 ms a request",
        bucket: Bucket::Folder,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::du,
        ..PLAIN
    },
    Workload {
        name: "find_size",
        about: "find -size in the same directory",
        bucket: Bucket::Folder,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::find_size,
        ..PLAIN
    },
    Workload {
        name: "ls_l",
        about: "ls -l of the same directory",
        bucket: Bucket::Folder,
        latency_ms: 20,
        unit: Unit::Whole,
        run: names::ls_l,
        ..PLAIN
    },
    Workload {
        name: "write_1g",
        about: "one file, 1 MiB writes, closed",
        bucket: Bucket::Write,
        run: write::one,
        ..PLAIN
    },
    Workload {
        name: "write_4k",
        about: "one file, 4 KiB writes, closed",
        bucket: Bucket::Write,
        run: write::one_by_pages,
        ..PLAIN
    },
    Workload {
        name: "readers_writers",
        about: "16 threads read pieces of four files, 16 write a file each",
        run: mixed::readers_writers,
        ..PLAIN
    },
    Workload {
        name: "write_tls",
        about: "the same over TLS 1.3",
        bucket: Bucket::Write,
        tls: true,
        run: write::one,
        ..PLAIN
    },
    Workload {
        name: "write_slow",
        about: "one file, 1 MiB writes, closed; 20 ms a request, 90 MB/s a connection",
        bucket: Bucket::Write,
        latency_ms: 20,
        rate_mb: 90,
        run: write::one,
        ..PLAIN
    },
    Workload {
        name: "create_4k",
        about: "files of 4 KiB created and closed; 20 ms a request",
        bucket: Bucket::Write,
        latency_ms: 20,
        unit: Unit::Each,
        run: write::small,
        ..PLAIN
    },
    Workload {
        name: "create_4k_listed",
        about: "the same where a listing showed that the names are new, names kept for 60 s",
        bucket: Bucket::Write,
        latency_ms: 20,
        ttl_s: Some(60),
        unit: Unit::Each,
        run: write::small_listed,
        ..PLAIN
    },
    Workload {
        name: "rename_1g",
        about: "one file of a GiB gets another name; 20 ms a request",
        latency_ms: 20,
        renames: true,
        unit: Unit::Whole,
        run: rename::file,
        ..PLAIN
    },
    Workload {
        name: "rename_10000",
        about: "a directory of 10,000 files in 400 folders gets another name; 20 ms a request",
        bucket: Bucket::Renamed,
        latency_ms: 20,
        renames: true,
        unit: Unit::Whole,
        run: rename::directory,
        ..PLAIN
    },
    Workload {
        name: "append_4k",
        about: "4 KiB are appended to a file of 10 GiB; 20 ms a request",
        bucket: Bucket::Long,
        latency_ms: 20,
        renames: true,
        unit: Unit::Whole,
        run: rename::append,
        ..PLAIN
    },
    Workload {
        name: "cached",
        about: "one file again out of the disk cache, page cache dropped",
        cache: true,
        floors: &[Floor::PlainFile],
        run: read::cached,
        ..PLAIN
    },
    Workload {
        name: "cached_random",
        about: "4 KiB reads by 16 threads out of the disk cache, page cache dropped",
        cache: true,
        floors: &[Floor::PlainFile],
        unit: Unit::PerSecond,
        run: read::cached_random,
        ..PLAIN
    },
    Workload {
        name: "cached_random_4",
        about: "cached_random by 4 threads",
        cache: true,
        floors: &[Floor::PlainFile],
        unit: Unit::PerSecond,
        run: read::cached_random_4,
        ..PLAIN
    },
    Workload {
        name: "cached_cold",
        about: "cached, and the page cache of the cache's disk dropped too",
        cache: true,
        floors: &[Floor::PlainFile],
        run: read::cached_cold,
        ..PLAIN
    },
    Workload {
        name: "cached_random_cold",
        about: "cached_random, and the page cache of the cache's disk dropped too",
        cache: true,
        floors: &[Floor::PlainFile],
        unit: Unit::PerSecond,
        run: read::cached_random_cold,
        ..PLAIN
    },
    Workload {
        name: "cached_random_cold_4",
        about: "cached_random_cold by 4 threads",
        cache: true,
        floors: &[Floor::PlainFile],
        unit: Unit::PerSecond,
        run: read::cached_random_cold_4,
        ..PLAIN
    },
];
