//! The flags of `--mode full`: a local disk in front of the bucket.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{MIB_MAX, When};
use crate::inode::Unasked;
use crate::stage::Commit;

/// The flags of the mode.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Writing anywhere (experimental)")]
pub(crate) struct StagingOptions {
    /// Ways to write: object stores a file written from start to end; full takes any change of any file, by way of --stage
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: Mode,
    /// Directory on a local disk for files under change, and for those that could not be stored; of this mount alone
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) stage: Option<PathBuf>,
    /// MiB that files in --stage may take; beyond, writes fail with ENOSPC
    #[arg(long, value_name = "MiB", default_value_t = 10_240, requires = "stage", value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    pub(crate) stage_size: u64,
    /// The place that close and fsync wait for
    #[arg(long, value_enum, default_value_t, requires = "stage")]
    pub(crate) commit: CommitTo,
    /// Let the kernel write files in --stage directly (FUSE passthrough, experimental), with --commit disk; auto: if root mounts, on Linux 6.9 or later
    #[arg(long, value_enum, value_name = "WHEN", default_value = "off", requires = "stage")]
    pub(crate) stage_passthrough: When,
}

/// The values of `--mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// A file is written from start to end and stored when it is closed
    #[default]
    Object,
    /// Any write anywhere, by way of --stage
    Full,
}

/// The values of `--commit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CommitTo {
    /// Both wait for the bucket
    #[default]
    Close,
    /// close waits for nothing, fsync for the bucket; files are sent two seconds behind their last close
    Fsync,
    /// close waits for nothing, fsync for the local disk; files are sent two seconds behind their last close
    Disk,
}

impl StagingOptions {
    /// Whether files can be written at any offset.
    pub(crate) fn is_full(&self) -> bool {
        self.mode == Mode::Full
    }

    /// The storage that close and fsync wait for.
    pub(crate) fn promise(&self) -> Commit {
        match self.commit {
            CommitTo::Close => Commit::Close,
            CommitTo::Fsync => Commit::Fsync,
            CommitTo::Disk => Commit::Disk,
        }
    }

    /// How long names count as absent without a question: what another host closed shows at the next open here where close waits for the
    /// bucket, except in directories made here. `asks`: whether a flag wants each absent name asked for.
    pub(crate) fn unasked(&self, asks: bool) -> Unasked {
        match self.commit {
            _ if asks || !self.is_full() => Unasked::default(),
            CommitTo::Close => Unasked { by_name: Duration::ZERO, ..Unasked::SECOND },
            CommitTo::Fsync | CommitTo::Disk => Unasked::SECOND,
        }
    }

    /// Whether the kernel may write files of the stage directly (passthrough).
    pub(crate) fn lends(&self) -> bool {
        self.commit == CommitTo::Disk && self.stage_passthrough == When::Auto
    }

    /// Checks combinations of flags. `conflicts`: flags that exclude `--mode full`, and whether each is given.
    pub(super) fn check(&self, conflicts: &[(bool, &str)]) -> Result<(), String> {
        match (self.mode, &self.stage) {
            (Mode::Full, None) => {
                return Err("--mode full needs --stage DIRECTORY, on a local disk: files under change lie there until they are stored".into());
            }
            (Mode::Object, Some(_)) => {
                return Err("--stage needs --mode full: leave it out, or add that".into());
            }
            _ => {}
        }
        match conflicts.iter().find(|(is_given, _)| *is_given && self.is_full()) {
            Some((_, flag)) => Err(format!("--mode full can't go together with {flag}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::CommitTo;

    #[test]
    fn the_mode_and_its_directory_need_each_other() {
        let said = |args: &[&str]| parse(args).unwrap_err().to_string();
        assert!(said(&["--mode", "full"]).contains("--stage DIRECTORY"));
        assert!(said(&["--stage", "/s"]).contains("--mode full"));
        assert!(said(&["--mode", "full", "--stage", "/s", "--read-only"]).contains("--read-only"));
        assert!(parse(&["--mode", "object"]).is_ok());
        assert!(parse(&["--mode", "full", "--stage", "/s", "--stage-size", "1"]).unwrap().staging.is_full());
    }

    #[test]
    fn a_promise_is_one_of_three_and_needs_a_stage() {
        let full = ["--mode", "full", "--stage", "/s", "--commit"];
        let with = |commit| parse(&[&full[..], &[commit]].concat());
        for (commit, is) in [("close", CommitTo::Close), ("fsync", CommitTo::Fsync), ("disk", CommitTo::Disk)]
        {
            assert_eq!(with(commit).unwrap().staging.commit, is);
        }
        assert!(with("later").is_err());
        assert!(parse(&["--commit", "disk"]).unwrap_err().to_string().contains("--stage"));
    }
}
