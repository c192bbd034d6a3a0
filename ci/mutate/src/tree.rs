//! A copy of the sources that holds the switches, and its one build.
//!
//! Enters: the mutants in the order of the sample. Leaves: the numbers that compile, and the test programs. A mutant that does not
//! compile is replaced by the next one: it is not a question to the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::mutant::Mutant;
use crate::switch;

/// One program of tests.
#[derive(Clone, Debug)]
pub(crate) struct Tests {
    pub(crate) package: String,
    /// `lib`, or the name of the integration test.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
}

/// The numbers of `count` mutants that compile, and the tests that hold them.
///
/// # Errors
/// cargo can't run, or the tree does not compile for a reason that no mutant explains.
pub(crate) fn build(top: &Path, mutants: &[Mutant], count: usize) -> Result<(Vec<u32>, Vec<Tests>)> {
    let originals = originals(top, mutants)?;
    add_roots(top, mutants)?;
    hand_on(top)?;
    let mut dropped = BTreeSet::new();
    loop {
        let mut chosen: Vec<u32> =
            (0..u32::try_from(mutants.len())?).filter(|n| !dropped.contains(n)).take(count).collect();
        let refused = write(top, mutants, &originals, &chosen)?;
        chosen.retain(|n| !refused.contains(n));
        let missing = !refused.is_empty();
        dropped.extend(refused);
        if missing {
            continue;
        }
        let (unviable, tests) = compile(top)?;
        if unviable.is_empty() {
            println!("{} mutants compile, {} did not.", chosen.len(), dropped.len());
            return Ok((chosen, tests));
        }
        println!(
            "{} of {} mutants do not compile: the next ones of the sample take their place.",
            unviable.len(),
            chosen.len()
        );
        dropped.extend(unviable);
    }
}

fn originals(top: &Path, mutants: &[Mutant]) -> Result<BTreeMap<String, String>> {
    let files: BTreeSet<&String> = mutants.iter().map(|m| &m.file).collect();
    let read = |f: &String| std::fs::read_to_string(top.join(f)).with_context(|| format!("reading {f}"));
    files.into_iter().map(|f| Ok((f.clone(), read(f)?))).collect()
}

/// Gives the root of each crate its switch.
fn add_roots(top: &Path, mutants: &[Mutant]) -> Result<()> {
    let crates: BTreeSet<&str> =
        mutants.iter().filter_map(|m| m.file.split_once("/src/")).map(|(home, _)| home).collect();
    for home in crates {
        let path = top.join(home).join("src/lib.rs");
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        std::fs::write(&path, text + switch::ROOT)?;
    }
    Ok(())
}

/// Tests start engines with an environment of their own: the number of the mutant goes with it.
fn hand_on(top: &Path) -> Result<()> {
    const CLEARED: &str = ".env_clear()";
    const SWITCHED: &str = r#".env_clear().envs(std::env::var_os("MUTANT").map(|n| ("MUTANT", n)))"#;
    let mut folders = ["mountpoint/tests", "csi/tests", "reconciler/tests"].map(|f| top.join(f)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path)?;
                if text.contains(CLEARED) && !text.contains(SWITCHED) {
                    std::fs::write(&path, text.replace(CLEARED, SWITCHED))?;
                }
            }
        }
    }
    Ok(())
}

/// Writes each file anew if its switches changed, and returns the mutants that found no place.
fn write(
    top: &Path,
    mutants: &[Mutant],
    originals: &BTreeMap<String, String>,
    chosen: &[u32],
) -> Result<Vec<u32>> {
    let mut refused = Vec::new();
    for (file, text) in originals {
        let here: Vec<(u32, &Mutant)> =
            chosen.iter().map(|&n| (n, &mutants[n as usize])).filter(|(_, m)| m.file == *file).collect();
        let (out, no_place) = switch::put(text, &here).with_context(|| file.clone())?;
        refused.extend(no_place);
        let path = top.join(file);
        if std::fs::read_to_string(&path)? != out {
            std::fs::write(&path, out)?;
        }
    }
    Ok(refused)
}

/// Builds the tests: the mutants that do not compile, or the programs.
fn compile(top: &Path) -> Result<(BTreeSet<u32>, Vec<Tests>)> {
    let output = Command::new("cargo")
        .args(["test", "--quiet", "--locked", "--workspace", "--exclude", "tidy", "--no-run"])
        .args(["--message-format", "json"])
        .current_dir(top)
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    let (mut unviable, mut tests) = (BTreeSet::new(), Vec::new());
    for line in String::from_utf8(output.stdout)?.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        match message["reason"].as_str() {
            Some("compiler-message") if message["message"]["level"] == "error" => {
                unviable.extend(blamed(top, &message["message"])?);
            }
            Some("compiler-artifact") if message["profile"]["test"] == true => {
                tests.extend(program(&message))
            }
            _ => {}
        }
    }
    if !output.status.success() && unviable.is_empty() {
        bail!("the tree does not compile, and no mutant explains it; the errors are above");
    }
    Ok((unviable, tests))
}

/// The mutants at the places of an error: the last switch at or before each.
fn blamed(top: &Path, message: &Value) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let spans = message["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    for span in spans.iter().filter(|s| s["is_primary"] == true) {
        let (Some(file), Some(line)) = (span["file_name"].as_str(), span["line_end"].as_u64()) else {
            continue;
        };
        let Ok(text) = std::fs::read_to_string(top.join(file)) else { continue };
        let before: Vec<&str> = text.lines().take(usize::try_from(line)?).collect();
        let number = before.iter().rev().find_map(|l| {
            let (_, after) = l.rsplit_once("crate::mutant_on(")?;
            after.split(')').next()?.parse::<u32>().ok()
        });
        found.extend(number);
    }
    if !spans.is_empty() {
        eprintln!("{}", message["rendered"].as_str().unwrap_or_default());
        ensure!(!found.is_empty(), "an error that no mutant explains");
    }
    Ok(found)
}

fn program(message: &Value) -> Option<Tests> {
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let target = &message["target"];
    let name =
        if target["kind"][0] == "test" { target["name"].as_str()? } else { target["kind"][0].as_str()? };
    Some(Tests {
        package: manifest.parent()?.file_name()?.to_str()?.to_owned(),
        name: name.to_owned(),
        program: PathBuf::from(message["executable"].as_str()?),
        folder: manifest.parent()?.to_owned(),
    })
}
