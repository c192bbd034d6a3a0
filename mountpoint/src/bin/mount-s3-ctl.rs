//! `mount-s3-ctl`: what running mounts do, and what a bucket's store can do. Exit code 0: done; 1: something is wrong, and was said;
//! 2: bad usage.

use std::process::ExitCode;

fn main() -> ExitCode {
    mountpoint::ctl::main()
}
