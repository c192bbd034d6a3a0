//! The programs, one file each in `bench/programs/`, and their expected results.

/// Files that the programs share.
pub(crate) const SHARED: &[(&str, &str)] = &[
    ("kit.py", include_str!("../../programs/kit.py")),
    ("tables.py", include_str!("../../programs/tables.py")),
    ("tensors.py", include_str!("../../programs/tensors.py")),
    ("mapped.py", include_str!("../../programs/mapped.py")),
];

/// The versions and hashes of the libraries that CI runs.
pub(crate) const LOCK: &str = include_str!("../../programs/requirements.txt");
/// The versions and hashes of all libraries, those on demand included.
pub(crate) const LOCK_MORE: &str = include_str!("../../programs/requirements-more.txt");

/// Libraries and tools that neither lock has. Their rows run once they are installed by hand, the libraries into the environment.
const BY_HAND: &[&str] = &["torch", "streaming", "ffmpeg", "restic"];

/// One program and its task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) source: &'static str,
    /// The module that the program imports; it may be missing.
    pub(crate) module: &'static str,
    /// A tool that the program starts, if any.
    pub(crate) tool: Option<&'static str>,
    /// The program's own library for S3, if any.
    pub(crate) direct: Option<Direct>,
    pub(crate) kind: Kind,
}

/// The library by which a program reads a bucket without a mount.
#[derive(Debug)]
pub(crate) struct Direct {
    /// The module that the program imports for it; it may be missing.
    pub(crate) module: &'static str,
    /// The library's name in a table.
    pub(crate) library: &'static str,
}

/// Whether a task reads or writes, and the expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program reads. Limits of requests at the small scale: with the default flags, and with a TTL of 60 s.
    Reads { requests_max: u64, with_ttl_max: u64 },
    /// The program writes. Outcomes: with the default flags, and with all flags that allow changes.
    Writes { default: Outcome, allowed: Outcome },
}

/// The outcome of a task that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Works,
    /// The program fails with this errno; empty if the library does not tell it.
    Fails(&'static str),
}

impl Task {
    /// The first sentence of the program's file.
    pub(crate) fn about(&self) -> &'static str {
        let text = self.source.trim_start_matches("\"\"\"");
        text.split(['\n', '"']).next().unwrap_or_default().trim_end_matches('.')
    }

    /// Whether CI does not install the program's library or tool.
    pub(crate) fn is_on_demand(&self) -> bool {
        let has = |lock: &str| lock.lines().any(|line| line.starts_with(&format!("{}==", self.module)));
        let is_by_hand = self.tool.iter().chain([&self.module]).any(|name| BY_HAND.contains(name));
        is_by_hand || has(LOCK_MORE) && !has(LOCK)
    }

    pub(crate) fn writes(&self) -> bool {
        matches!(self.kind, Kind::Writes { .. })
    }
}

macro_rules! task {
    ($name:literal, $module:literal, $tool:expr, $kind:expr) => {
        task!($name, $module, $tool, $kind, None)
    };
    ($name:literal, $module:literal, $tool:expr, $kind:expr, $direct:expr) => {
        Task {
            name: $name,
            source: include_str!(concat!("../../programs/", $name, ".py")),
            module: $module,
            tool: $tool,
            direct: $direct,
            kind: $kind,
        }
    };
}

const fn reads(requests_max: u64, with_ttl_max: u64) -> Kind {
    Kind::Reads { requests_max, with_ttl_max }
}

const fn writes(default: Outcome, allowed: Outcome) -> Kind {
    Kind::Writes { default, allowed }
}

/// A program on demand whose requests nobody has counted.
const UNCOUNTED: Kind = reads(u64::MAX, u64::MAX);

use Outcome::{Fails, Works};

const ARROW: Option<Direct> = Some(Direct { module: "pyarrow", library: "pyarrow's S3" });
const DUCKDB: Option<Direct> = Some(Direct { module: "pyarrow", library: "DuckDB over pyarrow's S3" });
const POLARS: Option<Direct> = Some(Direct { module: "polars", library: "polars' S3" });
const HDF5: Option<Direct> = Some(Direct { module: "pyarrow", library: "h5py over pyarrow's S3" });
const ZARR: Option<Direct> = Some(Direct { module: "obstore", library: "zarr over obstore" });
const OBSTORE: Option<Direct> = Some(Direct { module: "obstore", library: "obstore" });
const STREAMER: Option<Direct> =
    Some(Direct { module: "runai_model_streamer", library: "Run:ai's model streamer" });
const CONNECTOR: Option<Direct> = Some(Direct { module: "s3torchconnector", library: "s3torchconnector" });

/// All programs, readers first.
pub(crate) const TASKS: &[Task] = &[
    task!("parquet_schema", "pyarrow", None, reads(8, 7), ARROW),
    task!("parquet_columns", "pyarrow", None, reads(27, 25), ARROW),
    task!("duckdb_aggregate", "duckdb", None, reads(33, 25), DUCKDB),
    task!("duckdb_glob", "duckdb", None, reads(82, 42), DUCKDB),
    task!("polars_scan", "polars", None, reads(38, 26), POLARS),
    task!("safetensors_whole", "safetensors", None, reads(42, 42), STREAMER),
    task!("safetensors_six", "safetensors", None, reads(44, 44), OBSTORE),
    task!("model_read", "numpy", None, reads(42, 42)),
    // The order in which eight processes touch pages decides: 60 to 95 for the same bytes.
    task!("model_eight", "numpy", None, reads(120, 120)),
    task!("copy_up", "numpy", None, reads(23, 23)),
    task!("copy_down", "numpy", None, reads(30, 30)),
    task!("memmap_sum", "numpy", None, reads(26, 26)),
    task!("zarr_chunks", "zarr", None, reads(46, 46), ZARR),
    task!("hdf5_planes", "h5py", None, reads(20, 20), HDF5),
    task!("small_files", "numpy", None, reads(560, 562), OBSTORE),
    task!("tar_unpack", "numpy", Some("tar"), reads(14, 14)),
    task!("rsync_out", "numpy", Some("rsync"), reads(103, 55)),
    task!("webdataset_shards", "webdataset", None, reads(20, 20)),
    task!("bam_index", "pysam", None, reads(18, 18)),
    task!("cog_window", "rasterio", None, reads(23, 23)),
    task!("tokenizer_load", "tokenizers", None, reads(9, 9)),
    task!("transformers_config", "transformers", None, reads(38, 24)),
    task!("torch_loader", "torch", None, UNCOUNTED, CONNECTOR),
    task!("streaming_shards", "streaming", None, UNCOUNTED),
    task!("ffmpeg_cut", "numpy", Some("ffmpeg"), UNCOUNTED),
    task!("write_npy", "numpy", None, writes(Works, Works)),
    task!("write_npz", "numpy", None, writes(Fails("EINVAL"), Fails("EINVAL"))),
    task!("write_parquet", "pyarrow", None, writes(Works, Works)),
    task!("write_polars", "polars", None, writes(Fails("EPERM"), Works)),
    task!("write_duckdb", "duckdb", None, writes(Works, Works)),
    task!("write_duckdb_base", "duckdb", None, writes(Works, Works)),
    task!("write_safetensors", "safetensors", None, writes(Fails("ENOSYS"), Works)),
    task!("write_zarr", "zarr", None, writes(Fails("EPERM"), Works)),
    task!("write_hdf5", "h5py", None, writes(Fails("EINVAL"), Fails("EINVAL"))),
    task!("write_sqlite", "sqlite3", None, writes(Fails(""), Fails(""))),
    task!("write_git", "numpy", Some("git"), writes(Fails("ENOSYS"), Works)),
    task!("write_checkpoint", "numpy", None, writes(Fails("ENOSYS"), Works)),
    task!("write_append", "numpy", None, writes(Fails("EPERM"), Works)),
    task!("write_rsync", "numpy", Some("rsync"), writes(Fails("ENOSYS"), Works)),
    task!("write_torch", "torch", None, writes(Fails("ENOSYS"), Works)),
    task!("write_ffmpeg", "numpy", Some("ffmpeg"), writes(Fails("EINVAL"), Fails("EINVAL"))),
    task!("write_restic", "numpy", Some("restic"), writes(Fails("ENOSYS"), Works)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_name_of_its_own_and_says_what_it_does() {
        let mut names: Vec<_> = TASKS.iter().map(|task| task.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TASKS.len());
        for task in TASKS {
            assert!(task.about().len() > 10, "{}", task.name);
            assert!(task.source.contains("kit.main("), "{}", task.name);
            assert_eq!(task.writes(), task.name.starts_with("write_"), "{}", task.name);
            assert_eq!(task.direct.is_some(), task.source.contains("direct=direct"), "{}", task.name);
        }
    }

    #[test]
    fn what_is_random_comes_from_a_fixed_seed() {
        for (name, source) in TASKS.iter().map(|task| (task.name, task.source)).chain(SHARED.iter().copied())
        {
            assert!(source.split("default_rng(").skip(1).all(|rest| !rest.starts_with(')')), "{name}");
            assert!(!source.contains("import random\n") || source.contains("random.seed("), "{name}");
            assert!(["urandom", "uuid", "secrets"].iter().all(|word| !source.contains(word)), "{name}");
        }
    }

    #[test]
    fn libraries_beyond_those_of_ci_are_on_demand() {
        let on_demand: Vec<_> =
            TASKS.iter().filter(|task| task.is_on_demand()).map(|task| task.name).collect();
        let readers =
            ["webdataset_shards", "bam_index", "cog_window", "tokenizer_load", "transformers_config"];
        let by_hand = ["torch_loader", "streaming_shards", "ffmpeg_cut"];
        let writers = ["write_torch", "write_ffmpeg", "write_restic"];
        assert_eq!(on_demand, [&readers[..], &by_hand, &writers].concat());
    }

    #[test]
    fn each_library_of_the_lock_has_a_hash() {
        for lock in [LOCK, LOCK_MORE] {
            let libraries = lock.split("\n").filter(|line| line.contains("==")).count();
            let hashed = lock.split("==").skip(1).filter(|rest| rest.contains("--hash=sha256:")).count();
            assert!(libraries > 5 && hashed == libraries, "{hashed} of {libraries}");
        }
    }
}
