//! Files that are installed beside the program, out of the same definitions: completions of shells, and the manual page.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, ValueEnum as _};
use clap_complete::Shell;

use super::{Args, VERSION};

/// The page that a command line asks for, `--completions SHELL` or `--man`; `None` if it asks for none.
///
/// # Errors
/// No such shell.
pub(super) fn asked(line: &[OsString]) -> Option<Result<Vec<u8>, clap::Error>> {
    let words: Vec<&str> = line.iter().skip(1).filter_map(|word| word.to_str()).collect();
    match words[..] {
        ["--man"] => Some(man()),
        ["--completions"] => Some(completions("")),
        ["--completions", shell] => Some(completions(shell)),
        _ => None,
    }
}

fn completions(shell: &str) -> Result<Vec<u8>, clap::Error> {
    let shell = Shell::from_str(shell, true).map_err(|_| {
        let shells: Vec<String> = Shell::value_variants().iter().map(ToString::to_string).collect();
        clap::Error::raw(
            ErrorKind::InvalidValue,
            format!("--completions takes the name of a shell: {}\n", shells.join(", ")),
        )
    })?;
    let mut page = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "mount-s3", &mut page);
    Ok(page)
}

fn man() -> Result<Vec<u8>, clap::Error> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command()).source(format!("mount-s3 {VERSION}")).render(&mut page)?;
    Ok(page)
}
