//! Links between pages: each leads to a file of the tree, and its anchor to a heading there; and each page of `docs/` is linked from
//! `docs/README.md`, which is also the table of contents of the site (`ci/docs-site`).

use std::path::{Component, Path, PathBuf};

use crate::{Finding, Tree};

/// The page with the table of contents.
const CONTENTS: &str = "docs/README.md";

/// Checks every rule of this file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        for (line, target) in links(text) {
            findings.extend(broken(tree, path, &target).map(|what| Finding::new(path, line, what)));
        }
    }
    let listed: Vec<String> = links(tree.text(CONTENTS).unwrap_or_default())
        .into_iter()
        .filter_map(|(_, target)| resolved(CONTENTS, target.split('#').next().unwrap_or_default()))
        .collect();
    let pages = tree.files().map(|(path, _)| path).filter(|path| {
        path.strip_prefix("docs/").is_some_and(|name| name.ends_with(".md") && !name.contains('/'))
    });
    let missing = pages.filter(|path| *path != CONTENTS && !listed.iter().any(|it| it == path));
    findings.extend(missing.map(|path| Finding::new(CONTENTS, 0, format!("{path} has no row"))));
    findings
}

/// Targets of links within the tree, with their lines. Links in code are ignored.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        // Pieces between backticks are code, and are left out.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for piece in prose.split("](").skip(1) {
            let target = piece.split([')', ' ']).next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push((i + 1, target.to_owned()));
            }
        }
    }
    found
}

fn broken(tree: &Tree, page: &str, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => page.to_owned(),
        file => resolved(page, file).unwrap_or_default(),
    };
    let folder = format!("{}/", path.trim_end_matches('/'));
    let is_there = tree.files().any(|(it, _)| it == path || it.starts_with(&folder));
    if !is_there {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let has_anchor = || tree.text(&path).is_some_and(|text| anchors(text).any(|it| it == anchor));
    (!anchor.is_empty() && path.ends_with(".md") && !has_anchor())
        .then(|| format!("{path} has no heading for #{anchor}"))
}

/// The path of a link on a page from the top of the tree; `None` if it leads above the top.
fn resolved(page: &str, target: &str) -> Option<String> {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop().then_some(())?;
            }
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.to_str().map(str::to_owned)
}

/// The anchors of a page's headings, in the form of GitHub and the site.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut in_code = false;
    text.lines().filter_map(move |line| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let heading = line.trim_start_matches('#');
        let is_heading = !in_code && line.len() > heading.len() && heading.starts_with(' ');
        is_heading.then(|| anchor(heading.trim()))
    })
}

fn anchor(heading: &str) -> String {
    let spaced = |c: char| if c == ' ' { '-' } else { c };
    let lower = heading.to_lowercase();
    lower.chars().map(spaced).filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let other = "# Other\n```\n# no heading\n```\n## What it `does`: A & B\n";
        let files = [("docs/README.md", page), ("docs/other.md", other), ("x/y.json", "{}")];
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let page = "# Top\n[a](other.md) [b](other.md#what-it-does-a--b) [c](#top) [d](../x/y.json) [e](../x) \
                    [f](https://a.b/c.md) `[g](none.md)`\n```\n[h](none.md)\n```\n";
        assert_eq!(found(page), Vec::<String>::new());
    }

    #[test]
    fn a_link_to_a_missing_file_or_heading_and_a_page_without_a_row_are_found() {
        assert_eq!(
            found("[a](other.md#no-heading) [b](none.md) [c](../../up.md)"),
            [
                "docs/README.md:1: docs/other.md has no heading for #no-heading",
                "docs/README.md:1: the link to none.md leads nowhere",
                "docs/README.md:1: the link to ../../up.md leads nowhere",
            ]
        );
        assert_eq!(found("# Top"), ["docs/README.md: docs/other.md has no row"]);
    }
}
