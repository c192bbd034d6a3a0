//! `s3server ROOT`: a folder as S3 buckets until SIGTERM or SIGINT.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use s3server::{Config, FaultPlan, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Each upload allocates and frees buffers of a megabyte; glibc's malloc would return them to the kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves a folder as S3 buckets.
///
/// Each folder in ROOT is a bucket, each file in it an object. Signatures are verified; the secret key comes from a
/// file or the environment, never from the command line.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The folder; the server makes it if it is missing
    root: PathBuf,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Make this bucket if it is missing; repeat the flag for several
    #[arg(long = "bucket", value_name = "NAME")]
    buckets: Vec<String>,
    /// The access key that may sign
    #[arg(long, default_value = "test", value_name = "KEY")]
    access_key: String,
    /// File with the secret key; else S3SERVER_SECRET_KEY, else `testsecret` (loopback only)
    #[arg(long, value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// Faults to inject, as JSON (see the README)
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Domain whose subdomains are buckets
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Behave as S3 does where this server is otherwise easier on clients (see the README)
    #[arg(long)]
    strict: bool,
    /// Answer 403 to everything but keys below this prefix
    #[arg(long, value_name = "PREFIX")]
    policy_prefix: Option<String>,
    /// Answer operations on the tags of buckets with 501, as stores that have none
    #[arg(long)]
    no_bucket_tagging: bool,
    /// Write the port here once it listens
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("S3SERVER_LOG")
        // s3s also logs each error that it answers; the default filter drops that.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,s3s=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match serve(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "s3server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: Args) -> anyhow::Result<()> {
    // Signals are caught before the server starts: one during the start ends it in order, too.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("can't wait for signals")?;
    let mut config = Config::new(args.root);
    config.listen = args.listen;
    config.buckets = args.buckets;
    config.access_key = args.access_key;
    config.domain = args.domain;
    config.strict = args.strict;
    config.policy_prefix = args.policy_prefix;
    config.bucket_tagging = !args.no_bucket_tagging;
    match secret(args.secret_key_file.as_deref())? {
        Some(secret) => config.secret_key = secret,
        None => anyhow::ensure!(
            args.listen.ip().is_loopback(),
            "{} is not loopback: set a secret key (--secret-key-file or S3SERVER_SECRET_KEY)",
            args.listen
        ),
    }
    if let Some(path) = &args.faults {
        let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        config.faults = FaultPlan::from_json(&text).with_context(|| format!("in {}", path.display()))?;
    }
    let server = Server::start(config)?;
    if let Some(path) = &args.port_file {
        write_whole(path, &format!("{}\n", server.address().port()))
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    let _ = writeln!(std::io::stderr(), "s3server: listening on {}", server.endpoint());
    signals.forever().next();
    server.stop();
    Ok(())
}

fn secret(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(path) = file else {
        return Ok(std::env::var("S3SERVER_SECRET_KEY").ok().filter(|secret| !secret.is_empty()));
    };
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let secret = text.trim();
    anyhow::ensure!(!secret.is_empty(), "{} is empty", path.display());
    Ok(Some(secret.to_owned()))
}

/// Writes a file and renames it into place, so a process that waits for it finds it complete.
fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}
