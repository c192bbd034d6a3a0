//! Compares lists in the docs with lists in the code: metrics, flags, claims of semantics.md and their tests, rows of the seeds
//! and of other drivers' scenarios and their tests; paths in ARCHITECTURE.md; reasons for dependencies.

use crate::law::rows;
use crate::rust::Source;
use crate::{Finding, Tree};

const METRICS: &str = "mountpoint/src/metrics.rs";
const METRICS_PAGE: &str = "docs/metrics.md";
const CLAIMS_PAGE: &str = "docs/semantics.md";
/// The page with the tests of the claims.
const CLAIM_TESTS_PAGE: &str = "ci/tidy/claims.md";
const SEEDS_PAGE: &str = "csi/seeds.md";
const ACCEPTANCE_PAGE: &str = "csi/acceptance.md";
const CODE_PAGE: &str = "ARCHITECTURE.md";
/// Longest ARCHITECTURE.md, in bytes: newcomers read it first and as a whole.
const CODE_PAGE_MAX_BYTES: usize = 12 << 10;
/// The folder of the rooms. ARCHITECTURE.md omits it in their paths.
const ROOMS: &str = "mountpoint/src/";
/// The files that contain the names of the chart's facts.
const CHART_FACTS: [&str; 2] = ["helm/tests/facts.py", "ci/chart"];
const FLAGS: &str = "mountpoint/src/cli/";
const FLAGS_PAGE: &str = "docs/configuration.md";
const MANIFEST: &str = "Cargo.toml";

/// Checks every rule of this file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = metrics(tree);
    findings.extend(flags(tree));
    findings.extend(claims(tree));
    for page in [SEEDS_PAGE, ACCEPTANCE_PAGE] {
        findings.extend(covered(tree, page));
    }
    findings.extend(paths(tree));
    findings.extend(reasons(tree));
    findings.extend(unused(tree));
    findings
}

/// Compares the metrics in the code with those on the page.
fn metrics(tree: &Tree) -> Vec<Finding> {
    let code = Source::read(tree.text(METRICS).unwrap_or_default(), &[]).mapped_strings;
    let page = tree.text(METRICS_PAGE).unwrap_or_default();
    let listed: Vec<String> = rows(page, "Counters").into_iter().flat_map(|[keys, _]| keys).collect();
    let missing = code.iter().filter(|m| !listed.contains(m));
    let extra = listed.iter().filter(|m| !code.contains(m));
    missing
        .map(|m| {
            Finding::new(METRICS_PAGE, 0, format!("metric `{m}` of {METRICS} has no row below Counters"))
        })
        .chain(extra.map(|m| Finding::new(METRICS_PAGE, 0, format!("`{m}` is not a metric of {METRICS}"))))
        .collect()
}

/// Compares the flags in the code with those on the page.
fn flags(tree: &Tree) -> Vec<Finding> {
    let sources = tree.sources().filter(|(path, _)| path.starts_with(FLAGS));
    let code: Vec<String> = sources.flat_map(|(_, text)| long_flags(text)).collect();
    let words =
        rows(tree.text(FLAGS_PAGE).unwrap_or_default(), "Flags").into_iter().flat_map(|[keys, _]| keys);
    let listed: Vec<String> = words
        .filter_map(|w| w.split(' ').next().filter(|f| f.starts_with("--")).map(str::to_owned))
        .collect();
    let from_clap = ["--version", "--help"];
    let missing = code.iter().filter(|f| !listed.contains(f));
    let extra = listed.iter().filter(|f| !code.contains(f) && !from_clap.contains(&f.as_str()));
    missing
        .map(|f| Finding::new(FLAGS_PAGE, 0, format!("flag `{f}` of {FLAGS} has no row below Flags")))
        .chain(extra.map(|f| Finding::new(FLAGS_PAGE, 0, format!("`{f}` is not a flag of {FLAGS}"))))
        .collect()
}

/// The fields that clap turns into `--long-flags`.
fn long_flags(cli: &str) -> Vec<String> {
    let names_long = |text: &str| text.split([',', ' ', ')']).any(|word| word == "long");
    let mut found = Vec::new();
    let (mut is_flag, mut in_attribute) = (false, false);
    for line in cli.lines().map(str::trim) {
        if let Some(attribute) = line.strip_prefix("#[arg(") {
            is_flag = names_long(attribute);
            in_attribute = !line.ends_with(")]");
        } else if in_attribute {
            is_flag |= names_long(line);
            in_attribute = !line.ends_with(")]");
        } else if let Some((field, _)) = line.split_once(": ")
            && line.starts_with("pub")
            && std::mem::take(&mut is_flag)
        {
            let name = field.rsplit(' ').next().unwrap_or_default();
            found.push(format!("--{}", name.replace('_', "-")));
        }
    }
    found
}

/// Checks that every claim about semantics has one row on the page of tests, and that each row is about a claim and names existing tests.
fn claims(tree: &Tree) -> Vec<Finding> {
    let claims = items(tree.text(CLAIMS_PAGE).unwrap_or_default());
    let rows: Vec<_> = shown(tree.text(CLAIM_TESTS_PAGE).unwrap_or_default()).collect();
    let mut findings = Vec::new();
    for (line, claim) in &claims {
        let found = rows.iter().filter(|(_, start, _)| claim.starts_with(start)).count();
        if found != 1 {
            let message = format!("{CLAIM_TESTS_PAGE} has {found} rows for this claim, not one");
            findings.push(Finding::new(CLAIMS_PAGE, *line, message));
        }
    }
    for (line, start, tests) in &rows {
        let found = claims.iter().filter(|(_, claim)| claim.starts_with(start)).count();
        if found != 1 {
            let message = format!("{found} claims of {CLAIMS_PAGE} begin so, not one: {start}");
            findings.push(Finding::new(CLAIM_TESTS_PAGE, *line, message));
        }
        if tests.is_empty() {
            findings.push(Finding::new(CLAIM_TESTS_PAGE, *line, "a claim that no test shows"));
        }
        let gone = tests.iter().filter(|test| !is_test(tree, test));
        let finding = |test| Finding::new(CLAIM_TESTS_PAGE, *line, format!("there is no test `{test}`"));
        findings.extend(gone.map(finding));
    }
    findings
}

/// The items of a page's lists, each with the number of its first line. Indented lines below an item belong to it.
fn items(page: &str) -> Vec<(usize, String)> {
    let mut items: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (at, line) in page.lines().enumerate() {
        if let Some(text) = line.strip_prefix("- ") {
            items.push((at + 1, text.to_owned()));
            inside = true;
        } else if let Some((_, item)) = items.last_mut()
            && inside
            && line.starts_with("  ")
        {
            item.push(' ');
            item.push_str(line.trim());
        } else {
            inside = false;
        }
    }
    items
}

/// Rows of the page of claims and tests: line number, the first words of the claim without the final dots, and the tests.
fn shown(page: &str) -> impl Iterator<Item = (usize, &str, Vec<&str>)> {
    let is_head = |cell: &str| cell == "claim" || cell.trim_matches('-').is_empty() && cell.contains('-');
    page.lines().enumerate().filter_map(move |(at, line)| {
        let (claim, tests) = line.strip_prefix('|')?.trim_end().strip_suffix('|')?.rsplit_once('|')?;
        let start = claim.trim().trim_end_matches("...").trim_end();
        (!is_head(start)).then(|| (at + 1, start, tests.split('`').skip(1).step_by(2).collect()))
    })
}

/// Checks that the last cells of a page's rows name things that exist: tests, scenarios, files, facts of the chart.
fn covered(tree: &Tree, page: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in tree.text(page).unwrap_or_default().lines().enumerate() {
        let cells = line.strip_prefix('|').and_then(|l| l.trim_end().strip_suffix('|'));
        let Some(last) = cells.and_then(|c| c.rsplit('|').next()) else { continue };
        let named = last.split('`').skip(1).step_by(2);
        let gone = named.filter_map(|word| missing(tree, word));
        findings.extend(gone.map(|what| Finding::new(page, i + 1, format!("there is no {what}"))));
        if !last.contains("`ci/chart`") {
            continue;
        }
        let facts = last.split('"').skip(1).step_by(2).filter(|fact| !fact.starts_with("issue "));
        let known = |fact: &str| {
            CHART_FACTS.iter().any(|file| tree.text(file).is_some_and(|text| text.contains(fact)))
        };
        let gone = facts.filter(|fact| !known(fact));
        findings.extend(gone.map(|fact| Finding::new(page, i + 1, format!("ci/chart checks no \"{fact}\""))));
    }
    findings
}

/// The missing thing, if a word has the form of a test's name, a path or a scenario and there is none.
fn missing(tree: &Tree, word: &str) -> Option<String> {
    let is_of =
        |extra: &str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || extra.contains(c));
    if word.contains('_') && is_of("_") {
        return (!is_test(tree, word)).then(|| format!("test `{word}`"));
    }
    if let Some(is_there) = is_path(tree, word) {
        return (!is_there).then(|| format!("file `{word}`"));
    }
    let is_scenario = || tree.text(&format!("ci/e2e.d/{word}.sh")).is_some();
    (word.contains('-') && is_of("-") && !word.starts_with('-') && !is_scenario())
        .then(|| format!("scenario `{word}`"))
}

/// Whether a path from the top of the tree exists; `None` for a word of another form.
fn is_path(tree: &Tree, word: &str) -> Option<bool> {
    let tops = ["ci/", "csi/", "docs/", "helm/", "mountpoint/", "reconciler/"];
    let folder = format!("{}/", word.trim_end_matches('/'));
    let mut paths = tree.files().map(|(path, _)| path);
    tops.iter()
        .any(|top| word.starts_with(top))
        .then(|| paths.any(|it| it == word || it.starts_with(&folder)))
}

/// Whether a path in a room (`room/file.rs`) exists; `None` for a word of another form.
fn is_in_room(tree: &Tree, word: &str) -> Option<bool> {
    let (room, _) = word.split_once('/')?;
    let room = format!("{ROOMS}{room}/");
    let is_path = word.ends_with(".rs") && tree.files().any(|(path, _)| path.starts_with(&room));
    is_path.then(|| tree.text(&format!("{ROOMS}{word}")).is_some())
}

/// Checks that the files and folders in ARCHITECTURE.md exist, and that the page is short.
fn paths(tree: &Tree) -> Vec<Finding> {
    let page = tree.text(CODE_PAGE).unwrap_or_default();
    let long = page.len().checked_sub(CODE_PAGE_MAX_BYTES + 1).map(|over| {
        Finding::new(CODE_PAGE, 0, format!("{} bytes more than {CODE_PAGE_MAX_BYTES}", over + 1))
    });
    let gone = page.lines().enumerate().flat_map(|(at, line)| {
        // A name without a folder is a file beside the one before it in its line, or one outside of the rooms.
        let mut folder = "";
        let words = line.split('`').skip(1).step_by(2).filter(move |word| {
            let is_there = is_path(tree, word).or_else(|| is_in_room(tree, word));
            match (is_there, word.rsplit_once('/')) {
                (Some(true), Some((of, _))) => folder = of,
                (None, None) if word.ends_with(".rs") && !folder.is_empty() => {
                    let path = format!("{folder}/{word}");
                    let is_beside = is_path(tree, &path).or_else(|| is_in_room(tree, &path));
                    return is_beside == Some(false) && tree.text(&format!("{ROOMS}{word}")).is_none();
                }
                _ => {}
            }
            is_there == Some(false)
        });
        words.map(move |word| (at, word))
    });
    gone.map(|(at, word)| Finding::new(CODE_PAGE, at + 1, format!("there is no file `{word}`")))
        .chain(long)
        .collect()
}

fn is_test(tree: &Tree, name: &str) -> bool {
    tree.sources().any(|(_, text)| has_test(text, name))
}

/// Whether a source has a test with this name: a function below a test's attribute.
fn has_test(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    if !text.contains(&function) {
        return false;
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let of_function = |at: usize| {
        let above = lines[..at].iter().rev();
        let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.any(|line| ["#[test]", "#[tokio::test"].iter().any(|test| line.starts_with(test)))
    };
    lines.iter().enumerate().any(|(at, line)| line.contains(&function) && of_function(at))
}

/// Checks that every library of the workspace has a reason: a comment on its line, or right above it. Members of the workspace need none.
fn reasons(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.text(MANIFEST).unwrap_or_default();
    let mut findings = Vec::new();
    let (mut inside, mut above) = (false, false);
    for (at, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line == "[workspace.dependencies]";
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let has_reason = above || line.split_once(" # ").is_some_and(|(_, why)| !why.trim().is_empty());
            if !has_reason && !line.contains("path = ") {
                let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
                let message = format!("dependency `{name}` has no comment: why is it here?");
                findings.push(Finding::new(MANIFEST, at + 1, message));
            }
        }
        above = line.strip_prefix('#').is_some_and(|why| !why.trim().is_empty());
    }
    findings
}

/// Finds dependencies that no source of their member uses.
fn unused(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let manifests = tree.files().filter(|(p, _)| p.ends_with("/Cargo.toml"));
    for (path, manifest) in manifests {
        let folder = path.trim_end_matches("Cargo.toml");
        let itself = folder.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let sources: Vec<Source> = tree
            .sources()
            .filter(|(p, _)| p.starts_with(folder))
            .map(|(_, t)| Source::read(t, &[]))
            .collect();
        let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
        // A member depends on itself to enable its test doubles.
        for name in keys(manifest, &tables).iter().filter(|n| *n != itself) {
            let ident = name.replace('-', "_");
            if !sources.iter().any(|s| s.mentions(&ident)) {
                findings.push(Finding::new(
                    path,
                    0,
                    format!("dependency `{name}` is named by no source here"),
                ));
            }
        }
    }
    findings
}

/// The keys in these tables of a manifest.
fn keys(manifest: &str, tables: &[&str]) -> Vec<String> {
    let mut inside = false;
    let mut keys = Vec::new();
    for line in manifest.lines() {
        if let Some(table) = line.strip_prefix('[') {
            inside = tables.contains(&table.trim_end().trim_end_matches(']'));
        } else if inside && line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            keys.extend(line.split(['=', '.', ' ']).next().map(str::to_owned));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_metric_without_a_row_and_a_row_without_a_metric_are_found() {
        let code = "counters! { /// Bytes.\n bytes => \"s3.bytes\", }";
        let page = "## Counters\n| name | meaning |\n| `s3.bytes` | Bytes. |\n";
        assert!(messages(&[(METRICS, code), (METRICS_PAGE, page)]).is_empty());
        assert_eq!(messages(&[(METRICS, code), (METRICS_PAGE, "## Counters\n")]).len(), 1);
        assert_eq!(messages(&[(METRICS, ""), (METRICS_PAGE, page)]).len(), 1);
    }

    #[test]
    fn a_flag_without_a_row_and_a_row_without_a_flag_are_found() {
        const CODE: &str = "mountpoint/src/cli/client.rs";
        let code = "#[arg(short, long, value_name = \"N\")]\npub(crate) part_size: u64,\n#[command(flatten)]\n\
                    pub mount: Mount,\n#[arg(value_name = \"BUCKET\")]\npub bucket: String,\n\
                    #[arg(\n    long,\n    value_parser = f(1..)\n)]\npub wide: u64,\n";
        let page = "## Flags\n| `--part-size BYTES` | 8 |\n| `--wide N` | 1 |\n| `--help` (`-h`) | |\n";
        assert!(messages(&[(CODE, code), (FLAGS_PAGE, page)]).is_empty());
        assert_eq!(messages(&[(CODE, code)]).len(), 2);
        assert_eq!(messages(&[(FLAGS_PAGE, page)]).len(), 2);
    }

    /// The findings about a page with one claim of two lines, and another page with these rows.
    fn about_claims(rows: &str) -> Vec<String> {
        let code = "#[test]\n/// Why.\nfn closing_twice_is_once() {}\n\nfn closing_twice_is_no_test() {}";
        let page = "# Closing\nText.\n- `close` may be called\n  twice.\n\nText.\n";
        let tests = format!("| claim | shown by |\n|---|---|\n{rows}");
        messages(&[("m/src/lib.rs", code), (CLAIMS_PAGE, page), (CLAIM_TESTS_PAGE, &tests)])
    }

    #[test]
    fn a_claim_without_a_test_and_a_test_that_is_gone_are_found() {
        let found = |cell| about_claims(&format!("| `close` may be called twice. | {cell} |\n"));
        let says = |what: &str| vec![format!("ci/tidy/claims.md:3: {what}")];
        assert!(found("`closing_twice_is_once`").is_empty());
        assert_eq!(found(""), says("a claim that no test shows"));
        assert_eq!(found("`closing_twice`"), says("there is no test `closing_twice`"));
        assert_eq!(found("`closing_twice_is_no_test`").len(), 1);
    }

    #[test]
    fn a_claim_without_a_row_and_a_row_without_a_claim_are_found() {
        let without = "docs/semantics.md:3: ci/tidy/claims.md has 0 rows for this claim, not one";
        let row = |claim| format!("| {claim} | `closing_twice_is_once` |\n");
        assert!(about_claims(&row("`close` may be called tw ...")).is_empty());
        assert_eq!(about_claims(""), [without]);
        let stray = "ci/tidy/claims.md:3: 0 claims of docs/semantics.md begin so, not one: `open` may";
        assert_eq!(about_claims(&row("`open` may ...")), [without, stray]);
        let twice = [row("`close` may ..."), row("`close` may be ...")].concat();
        let two = "docs/semantics.md:3: ci/tidy/claims.md has 2 rows for this claim, not one";
        assert_eq!(about_claims(&twice), [two]);
    }

    #[test]
    fn what_is_indented_belongs_to_its_item_and_text_behind_it_does_not() {
        let page = "- a\n  - b\n  c\ntext\n  d\n- e\n";
        assert_eq!(items(page), [(1, "a - b c".to_owned()), (6, "e".to_owned())]);
    }

    #[test]
    fn what_a_page_of_rows_names_and_nobody_has_is_found() {
        let code = "#[test]\nfn a_volume_is_mounted() {}";
        let page = |cell| format!("| row | state |\n|---|---|\n| mount | {cell} |\n");
        for name in [SEEDS_PAGE, ACCEPTANCE_PAGE] {
            let found = |cell| {
                let facts = ("helm/tests/facts.py", "check(f\"{what}: one priority class\")");
                let files =
                    [("csi/src/a.rs", code), ("ci/e2e.d/static-volume.sh", ""), ("ci/chart", ""), facts];
                messages(&[&files[..], &[(name, &page(cell))]].concat())
            };
            let says = |what: &str| vec![format!("{name}:3: {what}")];
            let good = "`a_volume_is_mounted`, `static-volume`, `csi/src/`, `kubectl get-x`";
            assert_eq!(found(good), Vec::<String>::new());
            assert_eq!(found("`a_volume_is_gone`"), says("there is no test `a_volume_is_gone`"));
            assert_eq!(found("`moving-volume`"), says("there is no scenario `moving-volume`"));
            assert_eq!(found("`csi/tests/none.rs`"), says("there is no file `csi/tests/none.rs`"));
            assert_eq!(found("\"issue csi\"; `ci/chart`: \"one priority class\""), Vec::<String>::new());
            assert_eq!(found("`ci/chart`: \"two classes\""), says("ci/chart checks no \"two classes\""));
        }
    }

    #[test]
    fn a_path_of_the_page_about_the_code_that_is_gone_is_found() {
        let page = "`csi/src/` and `csi/src/a.rs`\n| a change | `mountpoint/src/b.rs` or `b.rs` |\n";
        let found = messages(&[("csi/src/a.rs", ""), (CODE_PAGE, page)]);
        assert_eq!(found, ["ARCHITECTURE.md:2: there is no file `mountpoint/src/b.rs`"]);
        let page = "`s3/a.rs`, `s3/b.rs`; `application/x.rs`\n";
        let found = messages(&[("mountpoint/src/s3/a.rs", ""), (CODE_PAGE, page)]);
        assert_eq!(found, ["ARCHITECTURE.md:1: there is no file `s3/b.rs`"]);
        let page = "| x | `s3/a.rs`, `c.rs`, `a.rs` |\n`c.rs`";
        let files = [("mountpoint/src/s3/a.rs", ""), (CODE_PAGE, page)];
        assert_eq!(messages(&files), ["ARCHITECTURE.md:1: there is no file `c.rs`"]);
    }

    #[test]
    fn a_page_about_the_code_that_is_too_long_is_found() {
        let found = |bytes: usize| messages(&[(CODE_PAGE, &"x".repeat(bytes))]);
        assert_eq!(found(CODE_PAGE_MAX_BYTES), Vec::<String>::new());
        assert_eq!(found(CODE_PAGE_MAX_BYTES + 1), ["ARCHITECTURE.md: 1 bytes more than 12288"]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let manifest = "[workspace.dependencies]\nbytes = \"1\"  # slices\n# Clocks.\ntime = \"1\"\nfuser = \"1\"\n#\n\
                        http = \"1\" #\n\n# Ours.\n\nours = { path = \"ours\" }\n\n[profile.dev]\nx = 1\n";
        let found = messages(&[(MANIFEST, manifest)]);
        let says =
            |line, name| format!("Cargo.toml:{line}: dependency `{name}` has no comment: why is it here?");
        assert_eq!(found, [says(5, "fuser"), says(7, "http")]);
    }

    #[test]
    fn a_dependency_that_no_source_names_is_found() {
        let manifest = "[package]\nname = \"m\"\n[dependencies]\naws-config.workspace = true\n\
                        [dev-dependencies]\ntempfile = \"3\"\n";
        let files = |source| {
            [("m/Cargo.toml", manifest), ("m/src/lib.rs", source), ("n/src/lib.rs", "use tempfile;")]
        };
        assert!(messages(&files("use aws_config::Region; fn f() { tempfile::tempdir() }")).is_empty());
        let found = messages(&files("use aws_config::Region; // tempfile"));
        assert_eq!(found, ["m/Cargo.toml: dependency `tempfile` is named by no source here"]);
    }
}
