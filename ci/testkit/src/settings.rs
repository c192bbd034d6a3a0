//! Invalid settings of a program, each by its flag and by its variable.

use std::process::{Command, Output};

/// A text that no output may contain: invalid values have it where a secret could be.
pub const SECRET: &str = "HUSH";

/// A setting with an invalid value: its flag, its variable (`""` for none), the value, and words of the refusal.
pub type Invalid<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Runs `program` with only these variables in its environment.
///
/// # Panics
/// The program does not start.
pub fn run(program: &str, args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(environment.iter().copied());
    command.output().expect("the program starts")
}

/// Checks that `program` refuses each setting with exit status 2, in one line that names flag, variable and rule, and shows no secret.
/// `switches` are the flags without a value on the command line.
///
/// # Panics
/// A setting is not refused so.
pub fn each_is_refused_in_one_line(program: &str, settings: &[Invalid<'_>], switches: &[&str]) {
    for &(flag, variable, value, words) in settings {
        let by_flag = !switches.contains(&flag);
        let by_flag = by_flag.then(|| run(program, &[&format!("{flag}={value}")], &[]));
        let by_variable = (!variable.is_empty()).then(|| run(program, &[], &[(variable, value)]));
        for said in [by_flag, by_variable].into_iter().flatten() {
            let log = String::from_utf8(said.stderr).expect("a log is text");
            assert_eq!((said.status.code(), log.lines().count()), (Some(2), 1), "{flag}: {log}");
            assert!(log.contains(flag) && log.contains(variable) && log.contains(words), "{words}: {log}");
            assert!(!log.contains(SECRET), "{log}");
        }
    }
}

/// The text of a help without clap's line breaks.
///
/// # Panics
/// The help is not UTF-8.
pub fn unwrapped(help: Vec<u8>) -> String {
    let text = String::from_utf8(help).expect("a help is text");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
