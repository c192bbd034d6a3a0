//! The command line: parses arguments into peers, sizes and orders. This file measures nothing.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::null_fs::Transport;
use crate::peers::Peer;
use crate::programs;
use crate::weather;
use crate::workload::{Scale, Workload};

#[derive(Debug, Parser)]
#[command(version, about = "What mount-s3 costs, beside its peers")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure file systems side by side, in interleaved rounds
    Run(Box<RunArgs>),
    /// Measure with the program fio and the jobs of the published benchmark of AWS's mount-s3
    Fio(Box<FioArgs>),
    /// Show what file systems do while the store is away, breaks off, or is far behind a slow link
    Weather(Box<WeatherArgs>),
    /// Run programs of the field (pyarrow, DuckDB, zarr, ...) on a local folder and on mounts
    Programs(Box<ProgramArgs>),
    /// Measure help, version, the start of a mount and its idle memory
    Start {
        /// The mount-s3 to measure; without this flag, the one beside this program
        #[arg(long, value_name = "PROGRAM")]
        mount: Option<PathBuf>,
        /// How often; the figures are medians
        #[arg(long, default_value_t = 21)]
        rounds: usize,
    },
    /// Kill the engine below a mount that outlives it, and measure the pause of a reader
    Deaths {
        /// The mount-s3 to measure; without this flag, the one beside this program
        #[arg(long, value_name = "PROGRAM")]
        mount: Option<PathBuf>,
        /// Files that are open
        #[arg(long, default_value_t = 10_000)]
        files: u64,
        /// Directories that were looked up
        #[arg(long, default_value_t = 100_000)]
        directories: u64,
        /// How often the engine is killed; the figure is the median
        #[arg(long, default_value_t = 9)]
        deaths: usize,
        /// The pause before the next engine starts; systemd waits 100 ms with the packaged unit
        #[arg(long, default_value_t = 0)]
        restart_after_ms: u64,
    },
    /// Run every workload once, tiny and with every byte checked; fails if mount-s3 can't do one
    Smoke {
        /// The mount-s3 to test; without this flag, the one beside this program
        #[arg(long, value_name = "PROGRAM")]
        mount: Option<PathBuf>,
    },
    /// Show the figures that changed between two runs by more than their spread
    Compare { before: PathBuf, after: PathBuf },
    /// Show a saved run: its table, or with --html a page, with --svg a picture
    Report {
        report: PathBuf,
        /// Write one page with charts here, which a browser shows without a network
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Write the charts as one SVG picture here
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Show this workload; repeatable. Without this flag, all
        #[arg(long, value_name = "NAME")]
        workload: Vec<String>,
        /// Leave the floors out
        #[arg(long)]
        no_floors: bool,
    },
    /// List the workloads, and fio's jobs
    Workloads,
    /// Say how to get the peers
    Peers,
    /// Serve S3 on loopback and nothing else; prints its address, and with --tls the address for TLS on a second line
    Serve {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Run on this processor only
        #[arg(long)]
        cpu: Option<usize>,
        /// Also serve TLS 1.3, on a second port; writes the certificate to trust to this file
        #[arg(long, value_name = "CA_FILE")]
        tls: Option<PathBuf>,
    },
    /// Receive one object and drop it (the floor of reading)
    #[command(hide = true)]
    Receive {
        server: SocketAddr,
        path: String,
        /// Use TLS and trust this certificate
        #[arg(long)]
        ca: Option<PathBuf>,
    },
    /// Read a file in memory (what the copy to a reader costs)
    #[command(hide = true)]
    PageCache { bytes: u64 },
    /// Copy memory (the floor of moving bytes)
    #[command(hide = true)]
    Memcpy { bytes: u64 },
    /// Read pages of a mapped file
    #[command(hide = true)]
    MappedReads { file: PathBuf, random_ms: u64 },
    /// Start an engine, and the next one with its descriptors when it is killed
    #[command(hide = true)]
    Supervise {
        #[arg(long, default_value_t = 0)]
        restart_after_ms: u64,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Read files of a mount, and tell the longest pause
    #[command(hide = true)]
    ReadOn { dir: PathBuf, files: u64, directories: u64 },
    /// Serve files from memory (the floor of FUSE)
    #[command(hide = true)]
    NullFs { transport: Transport, dir: PathBuf, size: u64 },
    /// Show a file on disk as if a file system did (the floor of cached reads)
    #[command(hide = true)]
    PlainFile { cache: PathBuf, dir: PathBuf, size: u64 },
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Run only this workload; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<String>,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Leave out the floors: receive loop, null file systems, file on disk, page cache, memcpy
    #[arg(long)]
    pub(crate) no_floors: bool,
    /// Size of a big file; a power of two
    #[arg(long, default_value_t = 1024)]
    big_mib: u64,
    /// Small files read
    #[arg(long, default_value_t = 1000)]
    files: u64,
    /// Names in the big directory
    #[arg(long, default_value_t = 100_000)]
    names: u64,
    /// Files in the tree
    #[arg(long, default_value_t = 5000)]
    tree: u64,
    /// Files of the directory that du, find and ls look through; the walk with latency has twice as many
    #[arg(long, default_value_t = 5000)]
    folder: u64,
    /// Small files created
    #[arg(long, default_value_t = 50)]
    created: u64,
    /// Duration of random reads
    #[arg(long, default_value_t = 5)]
    random_s: u64,
    /// Check every byte read, not a sample
    #[arg(long)]
    check_all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FioArgs {
    /// Run only this job; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Vec<String>,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    #[command(flatten)]
    pub(crate) rounds: RoundArgs,
    /// Duration of a job
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=120))]
    runtime_s: u64,
}

#[derive(Debug, Args)]
pub(crate) struct WeatherArgs {
    /// Run this weather and no other; repeatable
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(weather::NAMES))]
    weather: Vec<String>,
    /// How long an outage lasts, in seconds; repeatable
    #[arg(long, value_name = "SECONDS", default_values_t = [5, 15, 45], value_parser = clap::value_parser!(u64).range(1..=120))]
    outage_s: Vec<u64>,
    /// Interleaved rounds of the weather `beside`, whose figures are medians; all other weather strikes once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    /// Keep the table here
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl WeatherArgs {
    /// The order from the flags.
    ///
    /// # Errors
    /// `--rounds` is 0.
    pub(crate) fn order(&self) -> anyhow::Result<weather::Order> {
        ensure!(self.rounds > 0, "--rounds is at least 1");
        let is_wanted =
            |name: &&&str| self.weather.is_empty() || self.weather.iter().any(|wanted| wanted == *name);
        Ok(weather::Order {
            names: weather::NAMES.iter().filter(is_wanted).copied().collect(),
            outages: self.outage_s.iter().copied().map(Duration::from_secs).collect(),
            rounds: self.rounds,
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// Make an environment with the libraries in this folder, and end; needs python3 with venv, and PyPI
    #[arg(long, value_name = "DIR")]
    pub(crate) prepare: Option<PathBuf>,
    /// Also the libraries on demand: webdataset, pysam, rasterio, tokenizers, transformers
    #[arg(long, requires = "prepare")]
    pub(crate) more: bool,
    /// The folder that --prepare has made
    #[arg(long, value_name = "DIR", required_unless_present = "prepare")]
    environment: Option<PathBuf>,
    /// Run only this program; repeatable
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    #[command(flatten)]
    pub(crate) peers: PeerArgs,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How long each answer of the store waits
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20)]
    latency_ms: u64,
    /// Data of a tenth of the size
    #[arg(long)]
    small: bool,
    /// Also the programs' own libraries for S3, without a mount
    #[arg(long)]
    direct: bool,
    /// Read-ahead given to every mount (root only)
    #[arg(long, value_name = "KIB")]
    read_ahead_kb: Option<u64>,
    /// Fail if a program passes that should not, fails that should pass, asks mount-s3 for more requests than expected, or is missing;
    /// libraries on demand may be
    #[arg(long)]
    pub(crate) check: bool,
    /// Keep the figures here
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl ProgramArgs {
    /// The order from the flags.
    ///
    /// # Errors
    /// `--rounds` is 0, or `--environment` is missing or has no environment.
    pub(crate) fn order(&self) -> anyhow::Result<programs::Order> {
        ensure!(self.rounds > 0, "--rounds is at least 1");
        let folder = self.environment.as_deref().context("--environment is missing")?;
        Ok(programs::Order {
            environment: programs::Environment::at(folder)?,
            names: self.program.clone(),
            rounds: self.rounds,
            latency: Duration::from_millis(self.latency_ms),
            small: self.small,
            direct: self.direct,
            read_ahead_kb: self.read_ahead_kb,
            again: self.check,
        })
    }
}

/// The file systems to measure.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// Our mount-s3, or any program that takes the same flags
    #[arg(long, value_name = "PROGRAM")]
    mount: Option<PathBuf>,
    /// An earlier mount-s3, in turn with the other one
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// The same mount-s3 once more, with --supervised
    #[arg(long, requires = "mount")]
    supervised: bool,
    /// Another file system, as NAME=COMMAND; see `bench peers`
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Peer::parse)]
    peer: Vec<Peer>,
    /// Debian's s3fs
    #[arg(long)]
    s3fs: bool,
    /// Debian's rclone
    #[arg(long)]
    rclone: bool,
    /// geesefs; without PROGRAM, the one in PATH
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "geesefs")]
    geesefs: Option<PathBuf>,
    /// AWS's engine: the program that bench/aws builds
    #[arg(long, value_name = "PROGRAM")]
    aws: Option<PathBuf>,
}

impl PeerArgs {
    /// The peers of the flags, mount-s3 first.
    ///
    /// # Errors
    /// A program is missing.
    pub(crate) fn peers(&self) -> anyhow::Result<Vec<Peer>> {
        let mut peers = Vec::new();
        peers.extend(self.mount.as_deref().map(found).transpose()?.map(Peer::mount_s3));
        peers.extend(self.before.as_deref().map(found).transpose()?.map(Peer::before));
        if let Some(mount) = self.mount.as_deref().filter(|_| self.supervised) {
            peers.push(Peer::supervised(found(mount)?, Duration::ZERO)?);
        }
        peers.extend(self.peer.iter().cloned());
        peers.extend(self.s3fs.then(Peer::s3fs));
        peers.extend(self.rclone.then(Peer::rclone));
        peers.extend(self.geesefs.clone().map(Peer::geesefs));
        peers.extend(self.aws.as_deref().map(found).transpose()?.map(Peer::aws));
        Ok(peers)
    }
}

/// The absolute path of a program: a mount starts it in another directory.
pub(crate) fn found(program: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(program).with_context(|| format!("find {}", program.display()))
}

/// How often, on what, and where the figures go.
#[derive(Debug, Args)]
pub(crate) struct RoundArgs {
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Keep the figures here
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Draw them on one page here
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Run the server on this processor only
    #[arg(long, value_name = "CPU")]
    pub(crate) server_cpu: Option<usize>,
    /// Read-ahead given to every mount (root only)
    #[arg(long, value_name = "KIB")]
    pub(crate) read_ahead_kb: Option<u64>,
    /// Count how often the threads of a daemon wait for one another; needs perf and root, and makes system calls dearer
    #[arg(long)]
    pub(crate) locks: bool,
}

impl RunArgs {
    /// The sizes of the workloads.
    ///
    /// # Errors
    /// `--big-mib` is not a power of two, which random reads need.
    pub(crate) fn scale(&self) -> anyhow::Result<Scale> {
        ensure!(self.big_mib.is_power_of_two(), "--big-mib is a power of two, not {}", self.big_mib);
        Ok(Scale {
            name: "full".to_owned(),
            big_bytes: self.big_mib << 20,
            files: self.files,
            names: self.names,
            tree: self.tree,
            folder: self.folder,
            created: self.created,
            random_for: Duration::from_secs(self.random_s),
            fio_for: Duration::ZERO,
            check_all: self.check_all,
        })
    }
}

impl FioArgs {
    /// The scale of fio's jobs: their duration. The job files have the sizes.
    pub(crate) fn scale(&self) -> Scale {
        Scale { name: "fio".to_owned(), fio_for: Duration::from_secs(self.runtime_s), ..Scale::smoke() }
    }
}

/// The workloads of `table` with these names; all without names. The jobs of fio also have the names of their files.
///
/// # Errors
/// A name that is not in the table.
pub(crate) fn chosen<'t>(table: &'t [Workload], names: &[String]) -> anyhow::Result<Vec<&'t Workload>> {
    let short = |workload: &Workload| workload.name.strip_prefix("fio_").unwrap_or(workload.name);
    let is = |workload: &Workload, name: &String| name == workload.name || name == short(workload);
    for name in names {
        let known = || table.iter().map(short).collect::<Vec<_>>().join(", ");
        ensure!(
            table.iter().any(|workload| is(workload, name)),
            "nothing is called {name}; there are {}",
            known()
        );
    }
    let wanted = |workload: &&Workload| names.is_empty() || names.iter().any(|name| is(workload, name));
    Ok(table.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{FIO, WORKLOADS};

    #[test]
    fn workloads_and_jobs_are_chosen_by_name_and_a_stranger_is_refused() {
        let names = |table: &'static [Workload], names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(table, &names)
                .map(|chosen| chosen.iter().map(|workload| workload.name).collect::<Vec<_>>())
        };
        assert_eq!(names(WORKLOADS, &["walk", "seq_read"]).unwrap(), ["seq_read", "walk"]);
        assert_eq!(names(FIO, &["ttfb", "fio_seq_read"]).unwrap(), ["fio_seq_read", "fio_ttfb"]);
        assert_eq!(names(FIO, &[]).unwrap().len(), FIO.len());
        assert!(names(WORKLOADS, &["nonsense"]).unwrap_err().to_string().contains("there are seq_read, "));
    }

    #[test]
    fn every_name_of_both_tables_is_its_own() {
        let mut names: Vec<_> = WORKLOADS.iter().chain(FIO).map(|workload| workload.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
