//! The grammar of `-o`: turns the options of a line in /etc/fstab, as mount(8), mount.fuse(8) and systemd pass them, into flags of
//! `mount-s3`.
//!
//! Options are separated by commas. A backslash escapes a comma, a double quote or a backslash within a value. An SELinux label may be in
//! double quotes, with plain commas.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser};

use super::{Args, FromMount, VERSION};

/// Mount an S3 bucket from /etc/fstab
#[derive(Debug, Parser)]
#[command(name = "mount-s3", version = VERSION, disable_version_flag = true, disable_help_flag = true)]
struct MountCommand {
    /// Bucket, or s3://bucket/prefix/
    bucket_name: OsString,
    /// Directory to mount on
    directory: OsString,
    /// Flags of mount-s3 without '--', and options of mount(8), separated by commas
    // `std::vec::Vec`, spelt so, is one value to clap, and not several.
    #[arg(short = 'o', value_parser = split_commas)]
    options: Vec<std::vec::Vec<String>>,
    /// Ignore unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything except the mount
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted without effect: there is no mtab to write
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Accepted without effect: the output is always the same
    #[arg(short = 'v')]
    verbose: bool,
    /// Mount namespace to mount in
    #[arg(short = 'N')]
    namespace: Option<PathBuf>,
    /// Accepted without effect: the file system type by which mount(8) found this program
    #[arg(short = 't')]
    file_system_type: Option<String>,
}

/// A line of fstab, translated to the flags of `mount-s3`.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) args: Vec<OsString>,
    pub(super) no_exec: bool,
    /// The SELinux labels in the form for mount(2).
    pub(super) labels: Vec<String>,
}

/// Whether mount(8) made this command line: the program's name begins with `mount.`, or the fourth word is `-o`.
pub(super) fn is_asked(line: &[OsString]) -> bool {
    let program = line.first().and_then(|name| Path::new(name).file_name());
    let is_helper = program.and_then(OsStr::to_str).is_some_and(|name| name.starts_with("mount."));
    is_helper || line.get(3).is_some_and(|word| word == "-o")
}

/// Parses a command line of mount(8).
///
/// # Errors
/// Bad usage, as an error of clap.
pub(super) fn read(line: Vec<OsString>) -> Result<(Line, FromMount), clap::Error> {
    let program = line.first().cloned().unwrap_or_else(|| "mount-s3".into());
    let command = MountCommand::try_parse_from(line)?;
    let options = command.options.concat();
    check(&options).map_err(|(kind, text)| clap::Error::raw(kind, format!("{text}\n")))?;
    let flags = options.iter().filter(|option| !is_for_others(option));
    let flags = flags.filter(|option| !command.sloppy || is_known(option)).map(|option| flag(option));
    let first = [program, command.bucket_name, command.directory];
    let line = Line {
        args: first.into_iter().chain(flags.map(OsString::from)).collect(),
        no_exec: options.iter().any(|option| option == "noexec"),
        labels: options.iter().filter_map(|option| label(option)).collect(),
    };
    Ok((line, FromMount { fake: command.fake, namespace: command.namespace }))
}

/// Rewrites clap's error for an unknown option into the terms of fstab, where options have no dashes.
pub(super) fn explained(error: clap::Error) -> clap::Error {
    let option = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => option.clone(),
        _ => return error,
    };
    let text = format!(
        "unexpected argument '{option}' found: -o takes the flags of `mount-s3 --help` without '--', separated by commas, \
         and options of mount(8)\n"
    );
    clap::Error::raw(ErrorKind::UnknownArgument, text)
}

/// Whether an option is ignored: it concerns only mount(8) or systemd, or has no effect on this file system.
fn is_for_others(option: &str) -> bool {
    const OTHERS: &[&str] = &[
        // Options that concern the time of the mount, or the user who may mount.
        "auto",
        "noauto",
        "defaults",
        "user",
        "nouser",
        "users",
        "nousers",
        "owner",
        "noowner",
        "group",
        "nogroup",
        "_netdev",
        "nofail",
        // Options without effect: this file system never honours set-uid programs and devices. `read` handles `noexec`.
        "rw",
        "nodev",
        "nosuid",
        "dev",
        "suid",
        "exec",
        "noexec",
        "async",
        // Options about access times, which this file system does not have.
        "atime",
        "noatime",
        "relatime",
        "norelatime",
        "strictatime",
        "nostrictatime",
        "diratime",
        "nodiratime",
        "lazytime",
        "nolazytime",
    ];
    option.is_empty()
        || label(option).is_some()
        || OTHERS.contains(&option)
        || ["x-", "X-", "comment=", "user="].iter().any(|begin| option.starts_with(begin))
}

/// The options that give files an SELinux label.
const LABELS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

/// An SELinux label in the form for mount(2): in quotes, since a level may contain commas.
fn label(option: &str) -> Option<String> {
    let (name, value) = option.split_once('=')?;
    LABELS.contains(&name).then(|| format!("{name}=\"{value}\""))
}

fn flag(option: &str) -> String {
    match option {
        "ro" => "--read-only".to_owned(),
        _ => format!("--{option}"),
    }
}

fn is_known(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    option == "ro" || Args::command().get_arguments().any(|arg| arg.get_long() == Some(name))
}

fn check(options: &[String]) -> Result<(), (ErrorKind, &'static str)> {
    let has = |name: &str| options.iter().any(|option| option == name);
    if options.iter().any(|option| option.starts_with('-')) {
        let text = "Cannot prefix arguments with `--` when using fstab style arguments.";
        return Err((ErrorKind::InvalidValue, text));
    }
    if has("ro") && has("rw") {
        return Err((ErrorKind::ArgumentConflict, "Cannot use 'ro' flag combined with 'rw' flag."));
    }
    if has("foreground") {
        let text = "Cannot use 'foreground' flag when using fstab style arguments.";
        return Err((ErrorKind::InvalidValue, text));
    }
    if has("read-only") {
        let text = "Cannot use 'read-only' flag when using fstab style arguments. Use 'ro' instead";
        return Err((ErrorKind::InvalidValue, text));
    }
    let is_no_label = |value: &str| value.is_empty() || value.contains(['"', '\0', '\n']);
    let is_wrong = |option: &String| match option.split_once('=') {
        Some((name, value)) => LABELS.contains(&name) && is_no_label(value),
        None => LABELS.contains(&option.as_str()),
    };
    if options.iter().any(is_wrong) {
        let text = "The label of context=, fscontext=, defcontext= or rootcontext= is missing, or has a quote or a line end.";
        return Err((ErrorKind::InvalidValue, text));
    }
    if has("remount") {
        let text =
            "A mount of mount-s3 can't be remounted: unmount it, and mount it anew with the other options.";
        return Err((ErrorKind::InvalidValue, text));
    }
    Ok(())
}

/// Whether the option so far is the name of a label with `=`, so its value follows.
fn is_label_so_far(option: &str) -> bool {
    option.strip_suffix('=').is_some_and(|name| LABELS.contains(&name))
}

/// Splits options at their commas. Quotes stay in place.
///
/// # Errors
/// A backslash before any other character or at the end, or an unmatched double quote.
fn split_commas(text: &str) -> Result<Vec<String>, String> {
    let mut options = vec![String::new()];
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        let literal = match character {
            '\\' => match characters.next() {
                Some((_, escaped @ (',' | '"' | '\\'))) => escaped,
                Some((_, other)) => {
                    return Err(format!(
                        "Unexpected character after backslash escape - found {other} at index {}",
                        at + 1
                    ));
                }
                None => return Err("Unexpected end of string after '\\'".into()),
            },
            '"' if options.last().is_some_and(|option| is_label_so_far(option)) => {
                let quoted = characters.by_ref().map(|(_, character)| character);
                let value: String = quoted.take_while(|character| *character != '"').collect();
                if let Some(option) = options.last_mut() {
                    option.push_str(&value);
                }
                continue;
            }
            '"' => {
                return Err(format!(
                    "Unexpected '\"' found at index {at} - perhaps you meant to escape it with \\"
                ));
            }
            ',' => {
                options.push(String::new());
                continue;
            }
            other => other,
        };
        if let Some(option) = options.last_mut() {
            option.push(literal);
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Asked, asked};
    use super::*;

    fn fstab(program: &str, words: &[&str]) -> Result<(Args, FromMount), clap::Error> {
        let line = [program, "demo_s3_bucket", "/mnt/test"]
            .into_iter()
            .chain(words.iter().copied())
            .map(OsString::from);
        match asked(line)? {
            Asked::Fstab(args, from_mount) => Ok((*args, from_mount)),
            Asked::Mount(_) => panic!("{words:?} was not taken for a line of fstab"),
        }
    }

    #[test]
    fn commas_separate_and_backslashes_escape() {
        for (text, options) in [
            ("simple,case", Some(&["simple", "case"][..])),
            ("comma\\,escape", Some(&["comma,escape"])),
            ("a,\\,,c", Some(&["a", ",", "c"])),
            ("a,\\,\\\",d", Some(&["a", ",\"", "d"])),
            ("é,🎡", Some(&["é", "🎡"])),
            ("back\\\\slash", Some(&["back\\slash"])),
            ("", Some(&[""])),
            ("ends,with,\\", None),
            ("bare,\"quotes\"", None),
            ("\\e", None),
        ] {
            let split = split_commas(text);
            assert_eq!(
                split.as_ref().ok().map(Vec::as_slice),
                options.map(|o| o.iter().map(|s| s.to_string()).collect::<Vec<_>>()).as_deref(),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn whatever_is_escaped_comes_back(options in proptest::collection::vec(".*", 1..5)) {
            let escaped: Vec<String> = options
                .iter()
                .map(|option| option.replace('\\', "\\\\").replace('"', "\\\"").replace(',', "\\,"))
                .collect();
            prop_assert_eq!(split_commas(&escaped.join(",")).unwrap(), options);
        }
    }

    #[test]
    fn a_line_of_fstab_becomes_flags() {
        let (args, from_mount) =
            fstab("mount-s3", &["-o", "prefix=foo/bar\\,baz/,_netdev,uid=2,ro,x-systemd.automount,noexec"])
                .unwrap();
        assert_eq!(args.bucket_options.prefix.as_deref(), Some("foo/bar,baz/"));
        assert_eq!((args.mount.uid, args.mount.gid), (Some(2), None));
        assert!(args.mount.read_only && args.mount.no_exec && !args.foreground);
        assert_eq!(from_mount, FromMount::default());
    }

    #[test]
    fn labels_of_selinux_go_to_mount_2_with_their_commas() {
        let quoted = "ro,context=\"system_u:object_r:svirt_t:s0:c1,c2\",uid=2";
        for options in [quoted, "ro,context=system_u:object_r:svirt_t:s0:c1\\,c2,uid=2"] {
            let (args, _) = fstab("mount-s3", &["-o", options]).unwrap();
            assert_eq!(args.mount.labels, ["context=\"system_u:object_r:svirt_t:s0:c1,c2\""]);
            assert_eq!((args.mount.uid, args.mount.read_only), (Some(2), true));
        }
        let all = "fscontext=a:b:c,defcontext=a:b:d,rootcontext=a:b:e";
        let (args, _) = fstab("mount-s3", &["-o", all]).unwrap();
        assert_eq!(
            args.mount.labels,
            ["fscontext=\"a:b:c\"", "defcontext=\"a:b:d\"", "rootcontext=\"a:b:e\""]
        );
        for wrong in ["context=", "context", "fscontext=a\\\"b", "context=\"a\nb\""] {
            assert!(fstab("mount-s3", &["-o", wrong]).is_err(), "{wrong}");
        }
        assert!(fstab("mount-s3", &["-o", "prefix=\"a/\""]).is_err(), "no other option may be quoted");
    }

    #[test]
    fn mount_8_may_use_all_its_words() {
        for program in ["/sbin/mount.mount-s3", "mount.fuse.mount-s3"] {
            let words = [
                "-s",
                "-f",
                "-n",
                "-v",
                "-N",
                "/proc/1/ns/mnt",
                "-o",
                "rw,allow-other,no-such-option",
                "-t",
                "fuse.mount-s3",
            ];
            let (args, from_mount) = fstab(program, &words).unwrap();
            assert!(args.mount.allow_other && !args.mount.read_only);
            assert_eq!(from_mount, FromMount { fake: true, namespace: Some("/proc/1/ns/mnt".into()) });
            let (args, _) = fstab(program, &["-sfnv", "-o", "ro"]).unwrap();
            assert!(args.mount.read_only);
            fstab(program, &[]).unwrap();
        }
    }

    #[test]
    fn what_no_line_may_say_is_refused() {
        for (options, why) in [
            ("--uid=2", "unexpected argument '--uid'"),
            ("debug,--uid=2", "Cannot prefix"),
            ("debug,-f", "Cannot prefix"),
            ("ro,rw", "Cannot use 'ro' flag combined with 'rw' flag"),
            ("foreground", "Cannot use 'foreground' flag"),
            ("read-only", "Cannot use 'read-only' flag"),
            ("remount,ro", "can't be remounted"),
            ("typo", "unexpected argument '--typo'"),
            ("cache=\"", "Unexpected '\"'"),
        ] {
            let error = fstab("mount-s3", &["-o", options]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(why), "{options}: {error}");
        }
    }
}
