//! `cargo run -p tidy`: prints each finding on one line, and fails if there is any.
#![expect(clippy::print_stdout, reason = "a command: its findings go to stdout")]

use std::process::ExitCode;

use tidy::{Tree, check};

fn main() -> ExitCode {
    match Tree::of_this_workspace().and_then(|tree| check(&tree)) {
        Ok(findings) if findings.is_empty() => {
            println!("The tree keeps its promises.");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            findings.iter().for_each(|f| println!("{f}"));
            println!("{} findings.", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("tidy could not read the tree: {error}");
            ExitCode::FAILURE
        }
    }
}
