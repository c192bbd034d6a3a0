//! What mount-s3 costs, beside its peers: a nearly free S3 server, workloads, a table.

mod pattern;
mod server;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve S3 on loopback and nothing else
    Serve {
        /// Port on 127.0.0.1; 0 takes a free one
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
}

#[expect(clippy::print_stdout, reason = "a command line speaks on its standard output")]
fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Serve { port } => {
            let server = server::Server::bind(port)?;
            println!("{}", server.address()?);
            server.run()
        }
    }
}
