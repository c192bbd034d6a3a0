//! The words of comments and messages, and the names of tests: plain enough that a reader needs nothing else beside them.
//!
//! Enters: every Rust source. Leaves: comments that begin with a fragment, phrases that hide their subject, names that are too long.
//! Nothing here judges whether a sentence is true or good.

use crate::lex::{Token, lex};
use crate::{Finding, Tree};

/// The most characters of a function's name. A longer name of a test tells a story instead of stating behaviour.
const NAME_MAX: usize = 70;

/// Words with which a doc comment names no subject: "Of a directory" of what?
const FRAGMENTS: [&str; 32] = [
    "Of", "Its", "Where", "What", "As", "Who", "Whose", "Whom", "Which", "That", "Those", "Their", "From",
    "To", "By", "For", "With", "Without", "On", "In", "At", "Into", "Out", "Over", "Under", "Through",
    "Behind", "Between", "And", "Until", "Not", "Only",
];

/// Number of first fragments with which no other comment may begin, either. After the other fragments a sentence may follow: "Without a
/// size, ...".
const IN_CODE: usize = 11;

/// Phrases that hide the subject, in small letters; cut, so that this file may name them.
const HIDING: [&str; 7] = [
    concat!("who", "ever"),
    concat!("that", " which"),
    concat!("so", " many"),
    concat!("is", " told"),
    concat!("are", " told"),
    concat!("was", " told"),
    concat!("were", " told"),
];

/// Checks every source by every rule about words.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.sources() {
        findings.extend(fragments(path, text));
        findings.extend(headings(path, text));
        findings.extend(phrases(path, text));
        findings.extend(names(path, text));
    }
    findings
}

/// The text of a line that is a comment, and whether it documents an item.
fn comment(line: &str) -> Option<(&str, bool)> {
    let text = line.trim_start().strip_prefix("//")?;
    let doc = text.strip_prefix(['/', '!']).filter(|text| !text.starts_with('/'));
    Some((doc.unwrap_or(text).trim_start(), doc.is_some()))
}

fn fragments(path: &str, text: &str) -> Vec<Finding> {
    let mut inside = None;
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let found = comment(line);
        let is_doc = found.map(|(_, is_doc)| is_doc);
        let words = found.filter(|_| inside != is_doc);
        let first = words.and_then(|(words, _)| words.split(|c: char| !c.is_alphabetic()).next());
        let (known, kind) = match is_doc {
            Some(true) => (&FRAGMENTS[..], "doc comment"),
            _ => (&FRAGMENTS[..IN_CODE], "comment"),
        };
        if let Some(word) = first.filter(|word| known.contains(word)) {
            let message =
                format!("a {kind} begins with \"{word}\": begin with a noun or a verb that names the thing");
            findings.push(Finding::new(path, i + 1, message));
        }
        inside = is_doc;
    }
    findings
}

/// Headings of doc comments with text behind them, which rustdoc makes a part of the heading.
fn headings(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate().filter_map(|(i, line)| Some((i + 1, comment(line)?)));
    let long = lines.filter(|(_, (words, is_doc))| {
        let heading = words.strip_prefix("# ").and_then(|words| words.split_once(' '));
        *is_doc && heading.is_some_and(|(word, _)| ["Errors", "Panics", "Safety"].contains(&word))
    });
    long.map(|(line, _)| Finding::new(path, line, "text stands in a heading: begin a line for it".to_owned()))
        .collect()
}

fn phrases(path: &str, text: &str) -> Vec<Finding> {
    let comments = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start()));
    let comments =
        comments.filter(|(_, line)| line.starts_with("//")).map(|(i, line)| (i, line.to_lowercase()));
    let strings = lex(text).into_iter().filter_map(|(token, line)| match token {
        Token::Str(words) => Some((line, words.to_lowercase())),
        _ => None,
    });
    let found = comments.chain(strings).filter_map(|(line, words)| Some((line, hiding(&words)?)));
    found
        .map(|(line, phrase)| {
            Finding::new(path, line, format!("\"{phrase}\" hides the subject: name the thing"))
        })
        .collect()
}

/// The first phrase that hides the subject.
fn hiding(words: &str) -> Option<String> {
    let whole = |at: usize, len: usize| {
        let beside = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        beside(words[..at].chars().next_back()) && beside(words[at + len..].chars().next())
    };
    let plain = HIDING.iter().find_map(|phrase| {
        let at = words.match_indices(phrase).map(|(at, _)| at).find(|at| whole(*at, phrase.len()))?;
        words.get(at..at + phrase.len()).map(str::to_owned)
    });
    plain.or_else(|| {
        ["is no ", "are no "].iter().find_map(|phrase| {
            let hides = |at: usize| {
                let before = words[..at].split_whitespace().next_back();
                let after = words[at + phrase.len()..].split(|c: char| !c.is_alphabetic()).next();
                whole(at, phrase.len() - 1)
                    && !before.is_some_and(|word| ["there", "here"].contains(&word.trim_matches('"')))
                    && after.is_some_and(|word| !["", "longer", "more"].contains(&word))
            };
            let at = words.match_indices(phrase).map(|(at, _)| at).find(|at| hides(*at))?;
            words.get(at..at + phrase.len() - 1).map(str::to_owned)
        })
    })
}

fn names(path: &str, text: &str) -> Vec<Finding> {
    let tokens = lex(text);
    let functions = tokens.windows(2).filter_map(|pair| match pair {
        [(Token::Ident(keyword), _), (Token::Ident(name), line)] if keyword == "fn" => Some((name, *line)),
        _ => None,
    });
    functions
        .filter(|(name, _)| name.chars().count() > NAME_MAX)
        .map(|(name, line)| {
            let message =
                format!("`{name}` has {} characters, at most {NAME_MAX}: state the behaviour", name.len());
            Finding::new(path, line, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        check(&Tree::of(&[("a/src/x.rs", text)])).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn text_in_a_heading_is_found() {
        let found = messages("/// A file.\n///\n/// # Errors The disk is full.\nfn f() {}");
        assert_eq!(found, ["a/src/x.rs:3: text stands in a heading: begin a line for it"]);
        assert!(messages("/// A file.\n///\n/// # Errors\n/// The disk is full.\nfn f() {}").is_empty());
    }

    #[test]
    fn a_doc_comment_that_begins_with_a_fragment_is_found() {
        let found = messages("//! Of a file.\n\n/// Its size.\n/// Of course.\nstruct A;\n    /// Where?\n");
        let lines: Vec<_> = found.iter().map(|m| m.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["a/src/x.rs:1", "a/src/x.rs:3", "a/src/x.rs:6"], "{found:?}");
        assert!(messages("//! A file.\n/// The size\n/// Of a file.\n// This is\n// Of that.\n").is_empty());
        assert!(messages("/// Offset of a file.\n/// [`As`] it is.\n").is_empty());
    }

    #[test]
    fn a_comment_of_code_that_begins_with_a_fragment_is_found() {
        let found = messages(
            "    // What is left.\n    // Its end.\nlet a = 1; // Of this line.\n/// A doc.\n// Of it.\n",
        );
        let lines: Vec<_> = found.iter().map(|m| m.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["a/src/x.rs:1", "a/src/x.rs:5"], "{found:?}");
        assert!(messages("// Without a size it asks.\n// Their order.\n").is_empty());
    }

    #[test]
    fn a_phrase_that_hides_its_subject_is_found_in_comments_and_messages() {
        let no = "no";
        for bad in [format!("x is {no} file"), format!("they are {no} files"), ["who", "ever"].concat()] {
            assert_eq!(messages(&format!("// {bad}")).len(), 1, "{bad}");
            assert_eq!(messages(&format!("const A: &str = \"{bad}\";")).len(), 1, "{bad}");
        }
        for good in [
            "there is no file",
            "it is no longer",
            "there are no more",
            "this nor",
            "is not a file",
            "so manyfold",
        ] {
            assert_eq!(messages(&format!("// {good}\nconst A: &str = \"{good}\";")), Vec::<String>::new());
        }
    }

    #[test]
    fn a_name_of_more_than_seventy_characters_is_found() {
        let function = |len: usize| format!("async fn {}() {{}}", "a".repeat(len));
        assert!(messages(&function(NAME_MAX)).is_empty());
        assert_eq!(messages(&function(NAME_MAX + 1)).len(), 1);
    }
}
