//! `mount-s3-ctl`: shows what running mounts do, and what the store of a bucket can do. Exit code 0: done; 1: a problem, which the output
//! describes; 2: bad usage.

use std::process::ExitCode;

fn main() -> ExitCode {
    mountpoint::ctl::main()
}
