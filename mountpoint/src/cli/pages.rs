//! Prints the files that are installed with a program, generated from its flags: shell completions and the manual page.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, ValueEnum as _};
use clap_complete::Shell;

use super::VERSION;

/// The page that a command line asks for: `--completions SHELL`, `--man`, or `--man SUBCOMMAND` if `command` has subcommands; `None` if it
/// asks for no page.
///
/// # Errors
/// An unknown shell or subcommand.
pub fn asked(line: &[OsString], command: impl Fn() -> Command) -> Option<Result<Vec<u8>, clap::Error>> {
    let words: Vec<&str> = line.iter().skip(1).filter_map(|word| word.to_str()).collect();
    match words[..] {
        ["--man"] => Some(man(command(), None)),
        ["--man", of] if command().has_subcommands() => Some(man(command(), Some(of))),
        ["--completions"] => Some(completions(command(), "")),
        ["--completions", shell] => Some(completions(command(), shell)),
        _ => None,
    }
}

fn completions(mut command: Command, shell: &str) -> Result<Vec<u8>, clap::Error> {
    let shell = Shell::from_str(shell, true).map_err(|_| {
        let shells: Vec<String> = Shell::value_variants().iter().map(ToString::to_string).collect();
        clap::Error::raw(
            ErrorKind::InvalidValue,
            format!("--completions takes the name of a shell: {}\n", shells.join(", ")),
        )
    })?;
    let mut page = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut page);
    Ok(page)
}

fn man(mut command: Command, of: Option<&str>) -> Result<Vec<u8>, clap::Error> {
    // `build` gives the subcommands their full names.
    command.build();
    if let Some(name) = of {
        let named = command.get_subcommands().map(|it| it.get_name().to_owned()).collect::<Vec<_>>();
        command = command.find_subcommand(name).cloned().ok_or_else(|| {
            let message = format!("--man takes nothing, or one of: {}\n", named.join(", "));
            clap::Error::raw(ErrorKind::InvalidValue, message)
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).source(format!("mount-s3 {VERSION}")).render(&mut page)?;
    Ok(page)
}
