//! Reads a Rust source as far as the rules need: the names that it uses, their lines, and whether only tests use them.
//!
//! Enters: the text of a file and its module. Leaves: every path in it (`use` trees expanded, `self` and
//! `super` resolved), every string. Macros are not expanded; their arguments are read like other code.

use crate::lex::{Token, lex};

/// A path in the source, such as `crate::buffer::Pool` or `hyper::body::Bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The segments of the path; for a path of the same crate the first one is `crate`.
    pub segments: Vec<String>,
    /// Line, from 1.
    pub line: usize,
    /// Whether the path is below a `#[cfg(test)]`.
    pub in_test: bool,
    /// The name under which a `use` imports the path.
    pub imported: Option<String>,
}

impl Name {
    /// The path as text.
    pub fn text(&self) -> String {
        self.segments.join("::")
    }
}

/// The facts of one source.
#[derive(Debug, Default)]
pub struct Source {
    /// Every path, including those with a single segment.
    pub names: Vec<Name>,
    /// Every string literal after a `=>`: macros write tables of names so.
    pub mapped_strings: Vec<String>,
}

impl Source {
    /// Reads `text`, the source of the module `module` (`["buffer", "page"]`; empty for the crate's root).
    pub fn read(text: &str, module: &[String]) -> Self {
        let tokens = lex(text);
        let mut reader =
            Reader { tokens: &tokens, at: 0, modules: Vec::new(), depth: 0, base: module.to_vec() };
        reader.read_all()
    }

    /// Whether some path contains this identifier as a segment.
    pub fn mentions(&self, ident: &str) -> bool {
        self.names.iter().any(|n| n.segments.iter().any(|s| s == ident))
    }
}

/// The module of a file in `src/`: `["a", "b"]` for `a/b.rs`, `a/b/mod.rs` and `a/b/main.rs`; empty for `lib.rs` and `main.rs`.
pub fn module_of(path_below_src: &str) -> Vec<String> {
    let stem = path_below_src.trim_end_matches(".rs");
    let mut parts: Vec<String> = stem.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|p| p == "mod" || p == "main") || stem == "lib" {
        parts.pop();
    }
    parts
}

struct Reader<'a> {
    tokens: &'a [(Token, usize)],
    at: usize,
    /// Inline modules around the present position: name, depth of braces outside, whether it is a test.
    modules: Vec<(Option<String>, usize, bool)>,
    depth: usize,
    base: Vec<String>,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|(t, _)| t)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |(_, line)| *line)
    }

    fn in_test(&self) -> bool {
        self.modules.iter().any(|m| m.2)
    }

    fn module_path(&self) -> Vec<String> {
        self.base.iter().cloned().chain(self.modules.iter().filter_map(|m| m.0.clone())).collect()
    }

    fn read_all(&mut self) -> Source {
        let mut source = Source::default();
        let mut test_item = false;
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Token::Punct('#') if self.is_cfg_test() => {
                    test_item = true;
                    self.at += 7;
                    continue;
                }
                Token::Ident(word) if word == "use" => {
                    self.at += 1;
                    let mut found = Vec::new();
                    self.use_tree(&[], &mut found);
                    for mut name in found {
                        name.in_test |= test_item;
                        source.names.push(name);
                    }
                    test_item = false;
                    continue;
                }
                Token::Ident(word) if word == "mod" => {
                    if let (Some(Token::Ident(name)), Some(Token::Punct('{'))) = (self.peek(1), self.peek(2))
                    {
                        self.modules.push((Some(name.clone()), self.depth, test_item));
                        test_item = false;
                    }
                }
                Token::Punct('{') => {
                    if test_item {
                        // A test function or block is recorded as a module without a name, so its end is known.
                        self.modules.push((None, self.depth, true));
                        test_item = false;
                    }
                    self.depth += 1;
                }
                Token::Punct('}') => {
                    self.depth = self.depth.saturating_sub(1);
                    while self.modules.last().is_some_and(|m| m.1 >= self.depth) {
                        self.modules.pop();
                    }
                }
                Token::Punct(';') => test_item = false,
                Token::Arrow => {
                    if let Some(Token::Str(text)) = self.peek(1) {
                        source.mapped_strings.push(text.clone());
                    }
                }
                Token::Ident(_) => {
                    let mut name = self.path();
                    name.in_test |= test_item;
                    source.names.push(name);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        source
    }

    /// Whether `#[cfg(test)]`, seven tokens, begins here.
    fn is_cfg_test(&self) -> bool {
        let word = |ahead, text: &str| matches!(self.peek(ahead), Some(Token::Ident(w)) if w == text);
        word(2, "cfg") && word(4, "test") && self.peek(5) == Some(&Token::Punct(')'))
    }

    /// Reads the path that begins here, and moves `at` to the token after it.
    fn path(&mut self) -> Name {
        let line = self.line();
        let mut segments = Vec::new();
        while let Some(Token::Ident(word)) = self.peek(0) {
            segments.push(word.clone());
            self.at += 1;
            match (self.peek(0), self.peek(1)) {
                (Some(Token::PathSep), Some(Token::Ident(_))) => self.at += 1,
                _ => break,
            }
        }
        self.name(segments, line)
    }

    /// Reads a `use` tree such as `a::{b, c::d as e, *}`; each branch becomes a name.
    fn use_tree(&mut self, before: &[String], found: &mut Vec<Name>) {
        let line = self.line();
        let mut segments = before.to_vec();
        let mut alias = None;
        loop {
            match self.peek(0).cloned() {
                Some(Token::Ident(word)) if word == "as" => {
                    alias = match self.peek(1) {
                        Some(Token::Ident(alias)) => Some(alias.clone()),
                        _ => None,
                    };
                    self.at += 2;
                }
                Some(Token::Ident(word)) => {
                    if word != "self" || segments.is_empty() {
                        segments.push(word);
                    }
                    self.at += 1;
                }
                Some(Token::Punct('*')) => {
                    segments.push("*".to_owned());
                    self.at += 1;
                }
                Some(Token::PathSep) => self.at += 1,
                Some(Token::Punct('{')) => {
                    self.at += 1;
                    while !matches!(self.peek(0), None | Some(Token::Punct('}'))) {
                        self.use_tree(&segments, found);
                        if self.peek(0) == Some(&Token::Punct(',')) {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                _ => break,
            }
        }
        if segments.len() > before.len() || !segments.is_empty() {
            let imported = alias.or_else(|| segments.last().cloned());
            found.push(Name { imported, ..self.name(segments, line) });
        }
    }

    /// Resolves `self` and `super` in a path of the present module.
    fn name(&self, mut segments: Vec<String>, line: usize) -> Name {
        let supers = segments.iter().take_while(|s| *s == "super").count();
        let from_here = segments.first().is_some_and(|s| s == "self") && segments.len() > 1;
        if supers > 0 || from_here {
            let mut module = self.module_path();
            module.truncate(module.len().saturating_sub(supers));
            segments = std::iter::once("crate".to_owned())
                .chain(module)
                .chain(segments.into_iter().skip(supers.max(usize::from(from_here))))
                .collect();
        }
        Name { segments, line, in_test: self.in_test(), imported: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, module: &[&str]) -> Vec<String> {
        let module: Vec<String> = module.iter().map(|s| (*s).to_owned()).collect();
        Source::read(text, &module).names.iter().map(Name::text).filter(|n| n.contains("::")).collect()
    }

    #[test]
    fn use_trees_are_spread_out() {
        let text = "use crate::{buffer::{Block, Pool as P}, s3, fs::*, cache::{self, disk}};";
        let expected = [
            "crate::buffer::Block",
            "crate::buffer::Pool",
            "crate::s3",
            "crate::fs::*",
            "crate::cache",
            "crate::cache::disk",
        ];
        assert_eq!(names(text, &[]), expected);
    }

    #[test]
    fn a_use_says_as_what_it_brings_a_name_in() {
        let found = Source::read("use a::{B, c::D as E, f::{self}}; fn g() { h::i() }", &[]);
        let imported: Vec<_> = found.names.iter().filter_map(|name| name.imported.as_deref()).collect();
        assert_eq!(imported, ["B", "E", "f"]);
    }

    #[test]
    fn self_and_super_are_resolved_also_in_inline_modules() {
        assert_eq!(names("use super::super::fs::File;", &["inode", "path"]), ["crate::fs::File"]);
        assert_eq!(names("fn f() { super::g::h() }", &["inode", "path"]), ["crate::inode::g::h"]);
        assert_eq!(names("mod a { mod b {} use super::super::x::Y; }", &["s3"]), ["crate::x::Y"]);
        assert_eq!(names("use self::list::page;", &["s3"]), ["crate::s3::list::page"]);
    }

    #[test]
    fn comments_strings_characters_and_lifetimes_are_not_paths() {
        let text = r##"
            // crate::fs::a
            /* crate::fs::b /* crate::fs::c */ crate::fs::d */
            const A: &'static str = "crate::fs::e \" crate::fs::f";
            const B: &str = r#"crate::fs::g " "#;
            const C: char = '"'; const D: char = '\''; const E: u8 = b'"';
            fn f<'a>(x: &'a str) { crate::s3::seen() }
        "##;
        assert_eq!(names(text, &[]), ["crate::s3::seen"]);
    }

    #[test]
    fn code_below_cfg_test_is_known_as_such_and_what_follows_is_not() {
        let text = "#[cfg(test)] mod tests { use a::b; fn f() { c::d(); } } fn g() { e::f(); } \
                    #[cfg(test)] use h::i; use j::k; #[cfg(test)] fn l() { m::n() } fn o() { p::q() }";
        let seen: Vec<_> = Source::read(text, &[])
            .names
            .into_iter()
            .filter(|n| n.segments.len() == 2)
            .map(|n| (n.text(), n.in_test))
            .collect();
        let expected = [("a::b", true), ("c::d", true), ("e::f", false), ("h::i", true), ("j::k", false)];
        let expected = expected.into_iter().chain([("m::n", true), ("p::q", false)]);
        assert_eq!(seen, expected.map(|(n, t)| (n.to_owned(), t)).collect::<Vec<_>>());
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let text = "/* a\n b */\nconst A: &str = \"c\nd\";\nuse x::y;";
        let found = Source::read(text, &[]);
        assert_eq!(found.names.iter().find(|n| n.text() == "x::y").map(|n| n.line), Some(5));
    }

    #[test]
    fn files_are_modules() {
        assert_eq!(module_of("buffer/page.rs"), ["buffer", "page"]);
        assert_eq!(module_of("buffer/mod.rs"), ["buffer"]);
        assert!(module_of("lib.rs").is_empty() && module_of("main.rs").is_empty());
        assert_eq!(module_of("ctl/main.rs"), ["ctl"]);
    }
}
