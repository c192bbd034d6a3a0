//! One version for everything: the workspace's version is also that of the chart, the lock files, the changelog, and every name in the docs
//! with a version.

use crate::{Finding, Tree};

const MANIFEST: &str = "Cargo.toml";
const CHART: &str = "helm/scality-mountpoint-s3-csi-driver/Chart.yaml";
const CHANGELOG: &str = "CHANGELOG.md";
/// Lock files with members of the workspace. Other packages have a source there.
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];
/// Version of packages in other workspaces of the tree, which are not released.
const UNRELEASED: &str = "0.0.0";
/// Names that a version follows. The character between may also be `:`, `_` or a space.
const NAMES: [&str; 4] = ["mount-s3", "mount-s3-host", "mountpoint-s3-csi-driver", "target/release"];
/// Releases that this one replaces, which `docs/migrating.md` and examples of upgrades may name.
const REPLACED: [&str; 4] = ["1.24.0", "1.2.0", "2.0.0", "2.2.0"];

/// Checks every place with a version.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.text(MANIFEST).unwrap_or_default();
    let Some(version) = version_of(manifest) else {
        return vec![Finding::new(MANIFEST, 0, "no version below [workspace.package]")];
    };
    let mut findings = chart(tree, version);
    findings.extend(locks(tree, version));
    findings.extend(changelog(tree, version));
    for (path, text) in tree.files().filter(|(path, _)| is_page(path)) {
        let wrong =
            text.lines().enumerate().flat_map(|(at, line)| others(line, version).map(move |it| (at, it)));
        findings.extend(
            wrong.map(|(at, it)| Finding::new(path, at + 1, format!("{it}: the version is {version}"))),
        );
    }
    findings
}

fn version_of(manifest: &str) -> Option<&str> {
    let package = manifest.split("[workspace.package]").nth(1)?.split("\n[").next()?;
    package.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
}

fn chart(tree: &Tree, version: &str) -> Vec<Finding> {
    let text = tree.text(CHART).unwrap_or_default();
    let missing = ["version", "appVersion"].into_iter().filter(|field| {
        let wanted = format!("{field}: {version}");
        !text.lines().any(|line| line == wanted)
    });
    missing.map(|field| Finding::new(CHART, 0, format!("{field} is not {version}"))).collect()
}

fn locks(tree: &Tree, version: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in LOCKS {
        for package in tree.text(path).unwrap_or_default().split("[[package]]").skip(1) {
            let field = |name: &str| {
                let text = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
                text.map(|text| text.trim_matches('"'))
            };
            let have = field("version").unwrap_or_default();
            if field("source").is_none() && have != version && have != UNRELEASED {
                let name = field("name").unwrap_or_default();
                findings.push(Finding::new(path, 0, format!("{name} has version {have}, not {version}")));
            }
        }
    }
    findings
}

/// Checks that the newest section of the changelog is the version's.
fn changelog(tree: &Tree, version: &str) -> Option<Finding> {
    let text = tree.text(CHANGELOG).unwrap_or_default();
    let newest = text.lines().find_map(|line| line.strip_prefix("## ")).unwrap_or_default();
    (newest.split(' ').next() != Some(version))
        .then(|| Finding::new(CHANGELOG, 0, format!("the first section is not of {version}")))
}

/// Whether a file is a page for users, or that of releases. Decisions and older sections of the changelog may name older versions.
fn is_page(path: &str) -> bool {
    let text = path.ends_with(".md") || path.ends_with(".svg");
    ["README.md", "ci/release.d/README.md"].contains(&path)
        || text && path.starts_with("docs/") && !path.starts_with("docs/decisions/")
}

/// The names with another version in this line.
fn others<'a>(line: &str, version: &'a str) -> impl Iterator<Item = String> + use<'a> {
    // Pictures have spaces that don't break.
    let line = line.replace("&#160;", " ");
    let mut found = Vec::new();
    for name in NAMES {
        for (at, _) in line.match_indices(name) {
            let rest = &line[at + name.len()..];
            let Some(tail) = rest.strip_prefix(['-', ':', '_', ' ']) else { continue };
            let number: String = tail.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            let number = number.trim_end_matches('.');
            let is_version = number.split('.').count() == 3;
            if is_version && number != version && !REPLACED.contains(&number) {
                found.push(format!("{name}{}", &rest[..=number.len()]));
            }
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST_TEXT: &str =
        "[workspace]\n[workspace.package]\nversion = \"3.0.0\"\n[workspace.dependencies]\n";
    const CHART_TEXT: &str = "name: a\nversion: 3.0.0\nappVersion: 3.0.0\n";
    const NEWS: &str = "# Changelog\n## 3.0.0 (unreleased)\n## 2.9.0\n";

    fn found(other: (&str, &str)) -> Vec<String> {
        let mut files = vec![(MANIFEST, MANIFEST_TEXT), (CHART, CHART_TEXT), (CHANGELOG, NEWS)];
        files.retain(|(path, _)| *path != other.0);
        files.push(other);
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn one_version_in_all_places_passes() {
        let lock = "[[package]]\nname = \"csi\"\nversion = \"3.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"r\"\n\
                    \n[[package]]\nname = \"fuzz\"\nversion = \"0.0.0\"\n";
        assert_eq!(found(("Cargo.lock", lock)), Vec::<String>::new());
        let page = "`mount-s3-host_3.0.0-1_amd64.deb` mount-s3 3.0.0+aws.1.24 mount-s3 1.24.0 target/release/x mount-s3 2 3.4.5";
        assert_eq!(found(("docs/a.md", page)), Vec::<String>::new());
    }

    #[test]
    fn a_chart_a_lock_file_or_a_changelog_of_another_version_is_found() {
        assert_eq!(
            found((CHART, "version: 3.0.0\nappVersion: 2.2.0\n")),
            [format!("{CHART}: appVersion is not 3.0.0")]
        );
        let lock = "[[package]]\nname = \"csi\"\nversion = \"0.1.0\"\n";
        assert_eq!(found(("Cargo.lock", lock)), ["Cargo.lock: csi has version 0.1.0, not 3.0.0"]);
        assert_eq!(
            found((CHANGELOG, "## 2.9.0\n## 3.0.0\n")),
            ["CHANGELOG.md: the first section is not of 3.0.0"]
        );
        assert_eq!(
            found((MANIFEST, "[workspace.package]\n")),
            ["Cargo.toml: no version below [workspace.package]"]
        );
    }

    #[test]
    fn a_page_or_a_picture_that_names_another_version_is_found() {
        let page = "x\n`ghcr.io/scality/mount-s3:0.1.0` and `target/release-0.1.0`, mountpoint-s3-csi-driver:2.2.0\n";
        let says = |name: &str| format!("docs/a.md:2: {name}: the version is 3.0.0");
        assert_eq!(found(("docs/a.md", page)), [says("mount-s3:0.1.0"), says("target/release-0.1.0")]);
        assert_eq!(found(("docs/pictures/a.svg", "mount-s3&#160;0.1.0+aws")).len(), 1);
    }
}
