//! Completions and the manual page.

use std::process::Command;

use testkit::need_tool;

use super::run::{command, end};

fn printed(words: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let ended = end(command(home.path()).args(words));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{words:?}");
    ended.stdout
}

fn options() -> Vec<String> {
    let help = printed(&["-h"]);
    let words = help.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --"));
    words
        .flat_map(|line| line.split_whitespace().take(2))
        .filter(|word| word.starts_with("--"))
        .map(|word| word.trim_end_matches(',').to_owned())
        .collect()
}

#[test]
fn the_manual_page_and_the_completions_have_every_option_of_the_help() {
    let options = options();
    assert!(options.len() > 30, "{options:?}");
    let man = printed(&["--man"]).replace("\\-", "-");
    assert!(man.contains(".TH mount-s3 1"), "{man}");
    let pages = ["bash", "zsh", "fish"].map(|shell| printed(&["--completions", shell]));
    for option in &options {
        assert!(man.contains(option.as_str()), "{option} is not in the manual page");
        for page in &pages {
            assert!(page.contains(option.trim_start_matches("--")), "{option} is not in {page}");
        }
    }
}

#[test]
fn bash_completes_with_what_is_printed() {
    if !need_tool("bash") {
        return;
    }
    let script = format!(
        "{}\nCOMP_WORDS=(mount-s3 --sse-k) COMP_CWORD=1\n_mount__s3 mount-s3 --sse-k mount-s3\necho \"${{COMPREPLY[@]}}\"",
        printed(&["--completions", "bash"])
    );
    let output = Command::new("bash").args(["--norc", "-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "--sse-kms-key-id", "{output:?}");
}

#[test]
fn a_shell_that_is_not_known_is_refused() {
    let home = tempfile::tempdir().unwrap();
    for words in [&["--completions"][..], &["--completions", "tcsh"]] {
        let ended = end(command(home.path()).args(words));
        assert!(ended.code == Some(2) && ended.stderr.contains("bash, "), "{ended:?}");
    }
}
