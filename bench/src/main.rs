//! What mount-s3 costs, beside its peers: a nearly free S3 server, workloads, a table. `docs/performance.md` says how to
//! run it and what each figure means.
#![expect(clippy::print_stdout, reason = "a command line speaks on its standard output")]

mod compare;
mod floor;
mod machine;
mod meter;
mod mount;
mod pattern;
mod peers;
mod report;
mod run;
mod server;
mod stats;
mod workload;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Parser, Subcommand};

use peers::Peer;
use report::Report;
use workload::{Scale, WORKLOADS, Workload};

#[derive(Debug, Parser)]
#[command(version, about = "What mount-s3 costs, beside its peers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure file systems side by side, in interleaved rounds
    Run(Box<RunArgs>),
    /// Run every workload once, tiny and with every byte checked; fails if mount-s3 can't do one
    Smoke {
        /// Our mount-s3; without, the one that stands beside this program
        #[arg(long, value_name = "PROGRAM")]
        mount: Option<PathBuf>,
    },
    /// Show what moved between two runs, against their spread
    Compare { before: PathBuf, after: PathBuf },
    /// List the workloads
    Workloads,
    /// Say how to get the peers
    Peers,
    /// Serve S3 on loopback and nothing else; prints its address
    Serve {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Run on this processor only
        #[arg(long)]
        cpu: Option<usize>,
    },
    /// Receive one object and throw it away (the floor of reading)
    #[command(hide = true)]
    Receive { server: SocketAddr, path: String },
    /// Serve files out of memory (the floor of FUSE)
    #[command(hide = true)]
    NullFs { dir: PathBuf, size: u64 },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Only this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Our mount-s3, or any program that takes the same flags
    #[arg(long, value_name = "PROGRAM")]
    mount: Option<PathBuf>,
    /// Another file system, as NAME=COMMAND; see `bench peers`
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Peer::parse)]
    peer: Vec<Peer>,
    /// Debian's s3fs
    #[arg(long)]
    s3fs: bool,
    /// Debian's rclone
    #[arg(long)]
    rclone: bool,
    /// Leave out the receive loop and the null file system
    #[arg(long)]
    no_floors: bool,
    /// Keep the figures here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    /// Small files created
    #[arg(long, default_value_t = 50)]
    created: u64,
    /// How long random reads go on
    #[arg(long, default_value_t = 5)]
    random_s: u64,
    /// Check every byte that is read, not a sample
    #[arg(long)]
    check_all: bool,
    /// Run the server on this processor only
    #[arg(long, value_name = "CPU")]
    server_cpu: Option<usize>,
    /// Read-ahead given to every mount (root only)
    #[arg(long, value_name = "KIB")]
    read_ahead_kb: Option<u64>,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Run(args) => measure(&args),
        Command::Smoke { mount } => smoke(mount),
        Command::Compare { before, after } => {
            print!("{}", compare::markdown(&load(&before)?, &load(&after)?));
            Ok(())
        }
        Command::Workloads => {
            for Workload { name, about, .. } in WORKLOADS {
                println!("{name:20} {about}");
            }
            Ok(())
        }
        Command::Peers => {
            println!("{}", peers::INSTALL);
            Ok(())
        }
        Command::Serve { port, cpu } => {
            if let Some(cpu) = cpu {
                let mut set = rustix::thread::CpuSet::new();
                set.set(cpu);
                rustix::thread::sched_setaffinity(None, &set)
                    .with_context(|| format!("run on processor {cpu}"))?;
            }
            let server = server::Server::bind(port)?;
            println!("{}", server.address()?);
            server.run()
        }
        Command::Receive { server, path } => {
            println!("{}", serde_json::to_string(&floor::receive(server, &path)?)?);
            Ok(())
        }
        Command::NullFs { dir, size } => floor::serve_null_fs(&dir, size),
    }
}

fn measure(args: &RunArgs) -> anyhow::Result<()> {
    ensure!(args.big_mib.is_power_of_two(), "--big-mib is a power of two, not {}", args.big_mib);
    let known = || WORKLOADS.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ");
    if let Some(stranger) =
        args.workload.iter().find(|name| WORKLOADS.iter().all(|workload| workload.name != **name))
    {
        bail!("no workload is called {stranger}; there are {}", known());
    }
    let mut peers = Vec::new();
    if let Some(program) = &args.mount {
        peers.push(Peer::mount_s3(
            std::fs::canonicalize(program).with_context(|| format!("find {}", program.display()))?,
        ));
    }
    peers.extend(args.peer.iter().cloned());
    peers.extend(args.s3fs.then(Peer::s3fs));
    peers.extend(args.rclone.then(Peer::rclone));
    if !args.no_floors {
        peers.push(Peer::null_fs()?);
    }
    let order = run::Order {
        workloads: WORKLOADS
            .iter()
            .filter(|workload| {
                args.workload.is_empty() || args.workload.iter().any(|name| name == workload.name)
            })
            .collect(),
        peers,
        rounds: args.rounds,
        scale: Scale {
            name: "full".to_owned(),
            big_bytes: args.big_mib << 20,
            files: args.files,
            names: args.names,
            tree: args.tree,
            created: args.created,
            random_for: Duration::from_secs(args.random_s),
            check_all: args.check_all,
        },
        server_cpu: args.server_cpu,
        read_ahead_kb: args.read_ahead_kb,
        floors: !args.no_floors,
    };
    let report = run::run(&order, &|line| eprintln!("{line}"))?;
    print!("{}", report::markdown(&report));
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

fn smoke(program: Option<PathBuf>) -> anyhow::Result<()> {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        // A machine that tests for others must be able to mount; a laptop need not.
        ensure!(std::env::var_os("CI").is_none(), "no smoke without FUSE: /dev/fuse: {error}");
        println!("SKIPPED: bench smoke: /dev/fuse: {error}");
        return Ok(());
    }
    let beside = || anyhow::Ok(std::env::current_exe()?.with_file_name("mount-s3"));
    let program = program.map_or_else(beside, Ok)?;
    let program = std::fs::canonicalize(&program).with_context(|| format!("find {}", program.display()))?;
    let order = run::Order {
        workloads: WORKLOADS.iter().collect(),
        peers: vec![Peer::mount_s3(program), Peer::null_fs()?],
        rounds: 1,
        scale: Scale::smoke(),
        server_cpu: None,
        read_ahead_kb: None,
        floors: true,
    };
    let report = run::run(&order, &|_| ())?;
    print!("{}", report::markdown(&report));
    let failed: Vec<_> =
        report.rows.iter().filter(|row| row.failure.is_some()).map(|row| row.workload.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn load(file: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report of this bench", file.display()))
}
