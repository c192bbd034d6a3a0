//! Measures what mount-s3 costs, beside other file systems: an S3 server that costs almost nothing, workloads, a table.
//! `bench/README.md` explains the commands and each figure.
#![expect(clippy::print_stdout, reason = "a command line speaks on its standard output")]

mod cli;
mod compare;
mod deaths;
mod floor;
mod html;
mod kernel_threads;
mod machine;
mod meter;
mod mount;
mod null_fs;
mod pattern;
mod peers;
mod plain_file;
mod programs;
mod report;
mod run;
mod server;
mod start;
mod stats;
mod supervisor;
mod waits;
mod warm;
mod weather;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser as _;

use cli::{Cli, Command, FioArgs, ProgramArgs, RoundArgs, RunArgs, WeatherArgs};
use peers::Peer;
use report::Report;
use workload::{FIO, Scale, WORKLOADS, Workload};

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Run(args) => measure(&args),
        Command::Fio(args) => measure_with_fio(&args),
        Command::Weather(args) => brave(&args),
        Command::Programs(args) => run_programs(&args),
        Command::Start { mount, rounds } => {
            print!("{}", start::measure(&beside(mount)?, rounds)?);
            Ok(())
        }
        Command::Deaths { mount, files, directories, deaths, restart_after_ms } => {
            let restart_after = Duration::from_millis(restart_after_ms);
            let order = deaths::Order { program: beside(mount)?, files, directories, deaths, restart_after };
            print!("{}", deaths::measure(&order, &|line| eprintln!("{line}"))?);
            Ok(())
        }
        Command::Supervise { restart_after_ms, command } => {
            supervisor::run(&command, Duration::from_millis(restart_after_ms))
        }
        Command::ReadOn { dir, files, directories } => deaths::read_on(&dir, files, directories),
        Command::Smoke { mount } => smoke(mount),
        Command::Compare { before, after } => {
            print!("{}", compare::markdown(&load::<Report>(&before)?, &load::<Report>(&after)?));
            Ok(())
        }
        Command::Report { report, html, svg, workload, no_floors } => {
            // A run of programs is a table alone.
            if html.is_none()
                && svg.is_none()
                && let Ok(run) = load::<programs::Report>(&report)
            {
                print!("{}", programs::markdown(&run.only(&workload)));
                return Ok(());
            }
            let report = load::<Report>(&report)?.only(&workload, !no_floors)?;
            if html.is_none() && svg.is_none() {
                print!("{}", report::markdown(&report));
            }
            if let Some(file) = html {
                write(&file, &html::page(&report))?;
            }
            if let Some(file) = svg {
                write(&file, &html::picture(&report))?;
            }
            Ok(())
        }
        Command::Workloads => {
            for Workload { name, about, .. } in WORKLOADS.iter().chain(FIO) {
                println!("{name:32} {about}");
            }
            Ok(())
        }
        Command::Peers => {
            println!("{}", peers::INSTALL);
            Ok(())
        }
        Command::Serve { port, cpu, tls } => serve(port, cpu, tls.as_deref()),
        Command::Receive { server, path, ca } => pass(floor::receive(server, &path, ca.as_deref())?),
        Command::MappedReads { file, random_ms } => {
            pass(workload::mapped::reads(&file, Duration::from_millis(random_ms))?)
        }
        Command::PageCache { bytes } => pass(floor::page_cache(bytes)?),
        Command::Memcpy { bytes } => pass(floor::memcpy(bytes)?),
        Command::NullFs { transport, dir, size } => null_fs::serve(transport, &dir, size),
        Command::PlainFile { cache, dir, size } => plain_file::serve(&cache, &dir, size),
    }
}

fn serve(port: u16, cpu: Option<usize>, ca_file: Option<&Path>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("run on processor {cpu}"))?;
    }
    let server = server::Server::bind(port, ca_file)?;
    let (plain, tls) = server.addresses()?;
    println!("{plain}");
    if let Some(tls) = tls {
        println!("{tls}");
    }
    server.run()
}

/// Prints the figures of a pass as JSON, for the bench that started this process.
fn pass(pass: floor::Pass) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&pass)?);
    Ok(())
}

fn measure(args: &RunArgs) -> anyhow::Result<()> {
    let workloads = cli::chosen(WORKLOADS, &args.workload)?;
    let mut peers = args.peers.peers()?;
    if !args.no_floors {
        peers.extend(Peer::floors()?);
    }
    run_rounds(workloads, peers, args.scale()?, &args.rounds, !args.no_floors)
}

fn measure_with_fio(args: &FioArgs) -> anyhow::Result<()> {
    let workloads = cli::chosen(FIO, &args.job)?;
    eprintln!("{}", workload::fio::version()?);
    let peers = args.peers.peers()?;
    ensure!(!peers.is_empty(), "nothing to measure: name a mount with --mount, --peer, --s3fs or another");
    run_rounds(workloads, peers, args.scale(), &args.rounds, false)
}

fn brave(args: &WeatherArgs) -> anyhow::Result<()> {
    let peers = args.peers.peers()?;
    ensure!(!peers.is_empty(), "nothing to measure: name a mount with --mount, --aws, --peer or another");
    let lines = weather::run(&args.order()?, &peers, &|line| eprintln!("{line}"))?;
    print!("{}", weather::markdown(&lines));
    if let Some(file) = &args.json {
        write(file, &serde_json::to_string_pretty(&lines)?)?;
    }
    Ok(())
}

fn run_programs(args: &ProgramArgs) -> anyhow::Result<()> {
    if let Some(folder) = &args.prepare {
        return programs::Environment::prepare(folder, args.more);
    }
    let report = programs::run(&args.order()?, &args.peers.peers()?, &|line| eprintln!("{line}"))?;
    print!("{}", programs::markdown(&report));
    if let Some(file) = &args.json {
        write(file, &serde_json::to_string_pretty(&report)?)?;
    }
    let surprises = report.surprises();
    ensure!(!args.check || surprises.is_empty(), "not as expected:\n{}", surprises.join("\n"));
    Ok(())
}

fn run_rounds(
    workloads: Vec<&Workload>,
    peers: Vec<Peer>,
    scale: Scale,
    args: &RoundArgs,
    floors: bool,
) -> anyhow::Result<()> {
    if args.locks {
        waits::available()?;
    }
    let order = run::Order {
        workloads,
        peers,
        rounds: args.rounds,
        scale,
        server_cpu: args.server_cpu,
        read_ahead_kb: args.read_ahead_kb,
        floors,
        waits: args.locks,
    };
    let report = run::run(&order, &|line| eprintln!("{line}"))?;
    print!("{}", report::markdown(&report));
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        write(file, &text)?;
    }
    if let Some(file) = &args.html {
        write(file, &html::page(&report))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn smoke(program: Option<PathBuf>) -> anyhow::Result<()> {
    // With CI=true nothing is skipped, as in the tests.
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        // A CI machine must be able to mount; a laptop need not.
        ensure!(!in_ci, "no smoke without FUSE: /dev/fuse: {error}");
        println!("SKIPPED: bench smoke: /dev/fuse: {error}");
        return Ok(());
    }
    let program = beside(program)?;
    let mut workloads: Vec<_> = WORKLOADS.iter().collect();
    match workload::fio::version() {
        Ok(_) => workloads.extend(FIO),
        Err(error) => {
            ensure!(!in_ci, "no smoke without fio's jobs: {error}");
            println!("SKIPPED: bench smoke of fio's jobs: {error}");
        }
    }
    // A supervised mount opens /dev/fuse itself.
    if rustix::process::geteuid().is_root() {
        let restart_after = Duration::ZERO;
        let order =
            deaths::Order { program: program.clone(), files: 3, directories: 5, deaths: 2, restart_after };
        print!("{}", deaths::measure(&order, &|_| ()).context("bench deaths")?);
    }
    let mut peers = vec![Peer::mount_s3(program)];
    peers.extend(Peer::floors()?);
    let order = run::Order {
        workloads,
        peers,
        rounds: 1,
        scale: Scale::smoke(),
        server_cpu: None,
        read_ahead_kb: None,
        floors: true,
        waits: false,
    };
    let report = run::run(&order, &|_| ())?;
    print!("{}", report::markdown(&report));
    let failed: Vec<_> =
        report.rows.iter().filter(|row| row.failure.is_some()).map(|row| row.workload.as_str()).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    let unstored: Vec<_> =
        report.rows.iter().filter(|row| row.stores_later()).map(|row| &row.workload).collect();
    ensure!(unstored.is_empty(), "close returned before the bytes were stored: {unstored:?}");
    Ok(())
}

/// The program to test; by default `mount-s3` beside this program.
fn beside(program: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let beside = || anyhow::Ok(std::env::current_exe()?.with_file_name("mount-s3"));
    cli::found(&program.map_or_else(beside, Ok)?)
}

fn load<R: serde::de::DeserializeOwned>(file: &Path) -> anyhow::Result<R> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a report of this bench", file.display()))
}
