//! Dependencies: compares the lists of licences and banned libraries in `deny.toml` with the libraries that cargo resolved, and keeps
//! libraries for the engine's commands out of the driver.
//!
//! `cargo deny check` does the same and more (advisories), but takes longer to build than this workspace. So the tests use `cargo tree`,
//! which every cargo has: it lists each library that is really built, and its licence.

use std::path::Path;
use std::process::Command;

use crate::{Finding, Tree};

const POLICY: &str = "deny.toml";

/// The workspaces, and whether the bans apply there. AWS's engine, a peer of the bench, needs libraries that our engine must not
/// use.
const WORKSPACES: [(&str, bool); 3] = [(".", true), ("fuzz", true), ("bench/aws", false)];

/// The engine's manifest. Its feature `commands` lists the libraries that only its commands need.
const ENGINE: &str = "mountpoint/Cargo.toml";
/// The crates that use the engine's library without its commands.
const WITHOUT_COMMANDS: [&str; 2] = ["csi", "reconciler"];

/// A library that is built.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    name: String,
    licence: String,
}

/// Finds banned libraries, unaccepted licences, and sources other than the one registry.
///
/// # Errors
/// cargo can't list the libraries.
pub fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let policy = tree.text(POLICY).ok_or_else(|| format!("{POLICY} is missing"))?;
    let mut findings = Vec::new();
    let manifest = tree.text(ENGINE).ok_or_else(|| format!("{ENGINE} is missing"))?;
    for of in WITHOUT_COMMANDS {
        findings.extend(apart(manifest, of, &libraries(".", &["--package", of, "--edges", "normal"])?));
    }
    for (folder, bans) in WORKSPACES {
        let all = ["--workspace", "--edges", "normal,build,dev"];
        findings.extend(judge(&libraries(folder, &all)?, policy, bans));
        let lock = if folder == "." { "Cargo.lock".to_owned() } else { format!("{folder}/Cargo.lock") };
        findings.extend(sources(&lock, tree.text(&lock).unwrap_or_default()));
    }
    Ok(findings)
}

/// Finds libraries of the feature `commands` that the crate `of` links.
fn apart(manifest: &str, of: &str, linked: &[Library]) -> Vec<Finding> {
    let feature = manifest.lines().find_map(|line| line.strip_prefix("commands = ["));
    let words = feature.into_iter().flat_map(|list| list.split('"').skip(1).step_by(2));
    let own: Vec<&str> = words.filter_map(|word| word.strip_prefix("dep:")).collect();
    if own.is_empty() {
        return vec![Finding::new(
            ENGINE,
            0,
            "the feature `commands` names no library: it would hold nothing",
        )];
    }
    let both = linked.iter().filter(|library| own.contains(&library.name.as_str()));
    both.map(|library| {
        let message = format!("`{of}` links `{}`, which only the engine's commands need", library.name);
        Finding::new(ENGINE, 0, message)
    })
    .collect()
}

fn libraries(folder: &str, of: &[&str]) -> Result<Vec<Library>, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--prefix", "none", "--format", "{p}|{l}"])
        .args(of)
        .current_dir(top)
        .output()
        .map_err(|e| format!("cargo tree: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses lines such as `bytes v1.12.1|MIT (*)`.
fn parse(tree: &str) -> Vec<Library> {
    let mut found: Vec<Library> = tree
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").split_once('|'))
        .filter_map(|(package, licence)| {
            let name = package.split(' ').next()?.to_owned();
            Some(Library { name, licence: licence.to_owned() })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup();
    found
}

fn judge(libraries: &[Library], policy: &str, bans: bool) -> Vec<Finding> {
    let allowed = list(policy, "licenses", "allow");
    let exceptions = entries(policy, "licenses", "exceptions");
    let banned = list(policy, "bans", "deny");
    let mut findings = Vec::new();
    for library in libraries {
        if bans && banned.contains(&library.name) {
            findings.push(Finding::new(POLICY, 0, format!("`{}` is banned and yet built", library.name)));
        }
        let excepted = |licence: &str| {
            exceptions.iter().any(|words| words[0] == library.name && words[1..].iter().any(|w| w == licence))
        };
        let ok = |licence: &str| allowed.iter().any(|a| a == licence) || excepted(licence);
        if !accepts(&library.licence, &ok) {
            let message = format!("`{}`: nobody accepted its licence \"{}\"", library.name, library.licence);
            findings.push(Finding::new(POLICY, 0, message));
        }
    }
    if banned.is_empty() || allowed.is_empty() {
        findings.push(Finding::new(
            POLICY,
            0,
            "the list of licences or of bans is empty: it would hold nothing",
        ));
    }
    findings
}

/// Checks that all libraries are from one registry, and none from git.
fn sources(path: &str, lock: &str) -> Vec<Finding> {
    let mut seen: Vec<&str> = lock.lines().filter_map(|l| l.strip_prefix("source = ")).collect();
    seen.sort_unstable();
    seen.dedup();
    let odd: Vec<&&str> =
        seen.iter().filter(|s| !s.starts_with("\"registry+")).chain(seen.iter().skip(1)).collect();
    odd.into_iter().map(|s| Finding::new(path, 0, format!("a source besides the registry: {s}"))).collect()
}

/// The strings, or the `crate`/`name` entries, in the list `key` of the table `table`.
fn list(policy: &str, table: &str, key: &str) -> Vec<String> {
    entries(policy, table, key).into_iter().map(|mut words| words.swap_remove(0)).collect()
}

/// The quoted texts in each line of that list.
fn entries(policy: &str, table: &str, key: &str) -> Vec<Vec<String>> {
    let heading = format!("[{table}]");
    let opening = format!("{key} = [");
    let lines = policy.lines().map(str::trim).skip_while(|l| *l != heading).skip(1);
    let body = lines.take_while(|l| !(l.starts_with('[') && l.ends_with(']'))).skip_while(|l| *l != opening);
    let entries = body.skip(1).take_while(|l| !l.starts_with(']')).filter(|l| !l.starts_with('#'));
    let words = entries.map(|l| l.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    words.filter(|words| !words.is_empty()).collect()
}

/// Whether licences that `ok` accepts satisfy an SPDX expression. The older spelling `A/B` means `A OR B`.
fn accepts(expression: &str, ok: &impl Fn(&str) -> bool) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&words, &mut at, ok);
    met && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, ok: &impl Fn(&str) -> bool) -> bool {
    let mut met = all_of(words, at, ok);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, ok);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, ok: &impl Fn(&str) -> bool) -> bool {
    let mut met = one(words, at, ok);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, ok);
    }
    met
}

fn one(words: &[&str], at: &mut usize, ok: &impl Fn(&str) -> bool) -> bool {
    let word = words.get(*at).copied().unwrap_or_default();
    *at += 1;
    if word == "(" {
        let met = any_of(words, at, ok);
        *at += 1;
        return met;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return ok(&format!("{word} WITH {exception}"));
    }
    ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "[licenses]\nallow = [\n    \"MIT\",\n    # why\n    \"Apache-2.0\",\n]\n\n\
                         [bans]\ndeny = [\n    { crate = \"openssl-sys\", reason = \"one TLS stack\" },\n]\n";

    fn built(name: &str, licence: &str) -> Vec<Library> {
        parse(&format!("{name} v1.0.0|{licence} (*)\n{name} v1.0.0|{licence}\n"))
    }

    #[test]
    fn a_banned_library_is_found() {
        assert_eq!(judge(&built("openssl-sys", "MIT"), LISTS, true).len(), 1);
        assert!(judge(&built("openssl-sys", "MIT"), LISTS, false).is_empty());
        assert!(judge(&built("rustls", "MIT"), LISTS, true).is_empty());
    }

    #[test]
    fn a_licence_that_nobody_accepted_is_found() {
        for fine in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "(MIT OR GPL-3.0) AND Apache-2.0"] {
            assert!(judge(&built("x", fine), LISTS, true).is_empty(), "{fine}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "Apache-2.0 WITH LLVM-exception", "MIT OR"] {
            assert_eq!(judge(&built("x", bad), LISTS, true).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_licence_is_excepted_for_one_library_alone() {
        let lists =
            LISTS.replace("[bans]", "exceptions = [\n    { crate = \"x\", allow = [\"NCSA\"] },\n]\n[bans]");
        assert!(judge(&built("x", "MIT AND NCSA"), &lists, true).is_empty());
        assert_eq!(judge(&built("y", "MIT AND NCSA"), &lists, true).len(), 1);
        assert_eq!(judge(&built("x", "MIT AND GPL-3.0"), &lists, true).len(), 1);
    }

    #[test]
    fn a_library_of_the_commands_that_the_driver_links_is_found() {
        let manifest =
            "[features]\ndefault = [\"commands\"]\ncommands = [\"dep:console\", \"dep:mimalloc\"]\n";
        assert_eq!(apart(manifest, "csi", &built("console", "MIT")).len(), 1);
        assert!(apart(manifest, "csi", &built("rustls", "MIT")).is_empty());
        assert_eq!(apart("[features]\n", "csi", &[]).len(), 1);
    }

    #[test]
    fn a_policy_that_lists_nothing_holds_nothing() {
        assert!(!judge(&[], "[licenses]\n[bans]\n", true).is_empty());
    }

    #[test]
    fn a_source_besides_the_registry_is_found() {
        let one = "source = \"registry+a\"\nsource = \"registry+a\"\n";
        assert!(sources("Cargo.lock", one).is_empty());
        assert_eq!(sources("Cargo.lock", &format!("{one}source = \"git+b\"\n")).len(), 2);
        assert_eq!(sources("Cargo.lock", &format!("{one}source = \"registry+b\"\n")).len(), 1);
    }
}
