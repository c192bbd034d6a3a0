//! Flags of the commands, and the variables that can replace them. Enters: a command line and this process's environment. Leaves: the
//! values that clap has read from both, or one line that names the flag and the variable.
//!
//! Never here: the value of a setting that may contain a secret (`hide_env_values`), neither in the help nor in an error. A secret has no
//! flag, because every process of a host can read command lines: its variable is a positional argument that the command line must not give.

use std::error::Error as _;
use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, Command, CommandFactory, FromArgMatches};

/// Heading of variables without a flag, in the help.
pub const WITHOUT_FLAG: &str = "Variables without a flag";

/// Parses the command line and the environment of this process, or ends it with a message.
#[must_use]
pub fn read<T: CommandFactory + FromArgMatches>() -> T {
    try_read(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// Whether the command line asks for the version. Then variables are not read: an invalid one must not prevent the answer.
#[must_use]
pub fn asks_version() -> bool {
    std::env::args_os().skip(1).any(|arg| arg == "--version")
}

/// Parses a command line and the environment of this process. A blank variable counts as unset: charts write such variables.
///
/// # Errors
/// The help, or a line about the first missing or invalid setting.
pub fn try_read<T: CommandFactory + FromArgMatches>(
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<T, clap::Error> {
    let mut known = T::command();
    known.build();
    let matches =
        without_blanks(T::command())?.try_get_matches_from(line).map_err(|error| named(error, &known))?;
    let is_given = |arg: &Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    if known.get_arguments().any(|arg| arg.is_positional() && is_given(arg)) {
        return Err(refused(ErrorKind::UnknownArgument, "every argument is a flag; --help lists them"));
    }
    T::from_arg_matches(&matches)
}

fn without_blanks(command: Command) -> Result<Command, clap::Error> {
    let mut unreadable = None;
    let command = command.mut_args(|arg| {
        let Some(name) = arg.get_env().map(|name| name.to_string_lossy().into_owned()) else { return arg };
        let Some(value) = std::env::var_os(&name) else { return arg };
        match value.to_str() {
            Some(text) if text.trim().is_empty() => return arg.env(Resettable::Reset),
            Some(_) => {}
            None => unreadable = Some(name),
        }
        arg
    });
    match unreadable {
        Some(name) => Err(refused(ErrorKind::InvalidUtf8, &format!("{name} is not UTF-8"))),
        None => Ok(command),
    }
}

/// Adds the variable's name to an error of clap, and removes a value that may be secret.
fn named(error: clap::Error, command: &Command) -> clap::Error {
    let known = |shown: &str| command.get_arguments().find(|arg| arg.to_string() == shown);
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
            let names: Option<Vec<_>> = missing.iter().map(|shown| known(shown).and_then(name)).collect();
            names.map_or(error, |names| {
                refused(ErrorKind::MissingRequiredArgument, &format!("{} is missing", names.join(", ")))
            })
        }
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(ContextValue::String(shown))) => {
            let Some((arg, name)) = known(shown).and_then(|arg| Some((arg, name(arg)?))) else {
                return error;
            };
            let value = match error.get(ContextKind::InvalidValue) {
                Some(ContextValue::String(value)) if !arg.is_hide_env_values_set() => {
                    format!(" is {value:?}")
                }
                _ => String::new(),
            };
            let why = match (error.source(), error.get(ContextKind::ValidValue)) {
                (Some(why), _) => why.to_string(),
                (None, Some(ContextValue::Strings(valid))) => format!("must be {}", valid.join(" or ")),
                (None, _) => "a value is missing".to_owned(),
            };
            refused(error.kind(), &format!("{name}{value}: {why}"))
        }
        _ => error,
    }
}

/// The name of a setting in messages: `--flag (VARIABLE)`.
fn name(arg: &Arg) -> Option<String> {
    let variable = arg.get_env().map(|name| name.to_string_lossy());
    match (arg.get_long(), variable) {
        (Some(flag), Some(variable)) => Some(format!("--{flag} ({variable})")),
        (Some(flag), None) => Some(format!("--{flag}")),
        (None, variable) => variable.map(String::from),
    }
}

fn refused(kind: ErrorKind, line: &str) -> clap::Error {
    clap::Error::raw(kind, format!("{line}\n"))
}

/// Trims white space around a text, such as the line end in a Secret.
///
/// # Errors
/// The text is blank.
pub fn trimmed(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("must not be empty".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// Parses a switch that a variable may turn on.
///
/// # Errors
/// The text is neither `true` nor `false`.
pub fn switch(text: &str) -> Result<bool, String> {
    text.trim().parse().map_err(|_| "must be true or false".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, env = "COMMAND_LINE_TEST_PORT")]
        port: Option<u16>,
        #[arg(long, env = "COMMAND_LINE_TEST_ADDRESS", hide_env_values = true)]
        address: Option<std::net::IpAddr>,
        #[arg(long, env = "COMMAND_LINE_TEST_ON", value_parser = switch)]
        on: bool,
        #[arg(long)]
        name: Option<u8>,
        #[arg(env = "COMMAND_LINE_TEST_KEY", hide_env_values = true, help_heading = WITHOUT_FLAG)]
        key: Option<String>,
        #[arg(long, env = "COMMAND_LINE_TEST_NEEDED")]
        needed: String,
    }

    #[test]
    fn an_error_names_flag_and_variable_and_shows_no_secret() {
        for (line, said) in [
            (
                &["--needed=n", "--port=many"][..],
                "error: --port (COMMAND_LINE_TEST_PORT) is \"many\": invalid digit found in string\n",
            ),
            (
                &["--needed=n", "--address=HUSH"],
                "error: --address (COMMAND_LINE_TEST_ADDRESS): invalid IP address syntax\n",
            ),
            (&["--needed=n", "--name=x"], "error: --name is \"x\": invalid digit found in string\n"),
            (&["--needed=n", "HUSH"], "error: every argument is a flag; --help lists them\n"),
            (&[], "error: --needed (COMMAND_LINE_TEST_NEEDED) is missing\n"),
        ] {
            let error = try_read::<Args>(["it"].iter().chain(line)).unwrap_err();
            assert_eq!(error.to_string(), said, "{line:?}");
        }
    }

    #[test]
    fn flags_are_read_as_clap_reads_them() {
        let args: Args = try_read(["it", "--needed=n", "--port=1", "--address=::1", "--on"]).unwrap();
        assert_eq!((args.port, args.on, args.needed.as_str()), (Some(1), true, "n"));
        assert!(args.address.is_some() && args.name.is_none() && args.key.is_none());
    }

    #[test]
    fn a_switch_is_true_or_false_and_a_text_is_not_blank() {
        assert_eq!(trimmed(" key\n").as_deref(), Ok("key"));
        assert_eq!((switch(" true\n"), switch("false")), (Ok(true), Ok(false)));
        assert!(switch("1").is_err() && switch("yes").is_err() && trimmed(" ").is_err());
    }
}
