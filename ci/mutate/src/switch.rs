//! Puts mutants into a source file so that an environment variable switches each one on.
//!
//! Enters: a file's text and its mutants, numbered. Leaves: the text with the switches. Never writes a file.
//!
//! `a < b` becomes `(if crate::mutant_on(7) { a <= b } else { a < b })`; a function begins with
//! `if crate::mutant_on(8) { return Ok(()); }`; an arm gets a guard. So one build holds all mutants, and what is switched off does what
//! it did before.

use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::mutant::{Genre, Mutant, Place};

/// The code that each crate's root gets: the switch itself.
pub(crate) const ROOT: &str = r#"
#[doc(hidden)]
#[allow(unreachable_pub, missing_docs, clippy::all)]
pub fn mutant_on(number: u32) -> bool {
    static ON: std::sync::LazyLock<u32> =
        std::sync::LazyLock::new(|| std::env::var("MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(u32::MAX));
    *ON == number
}
"#;

/// A piece of the text, by bytes, and what stands there instead.
struct Edit {
    range: Range<usize>,
    text: String,
}

/// The text with switches for those mutants, and the numbers of the ones that found no place.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn put(text: &str, mutants: &[(u32, &Mutant)]) -> Result<(String, Vec<u32>)> {
    let file = syn::parse_file(text).context("parsing the file")?;
    let lines = Lines::of(text);
    let mut edits: Vec<Edit> = Vec::new();
    let mut refused = Vec::new();
    for (number, mutant) in mutants {
        let mut search = Search { text, lines: &lines, mutant, number: *number, found: None };
        search.visit_file(&file);
        match search.found {
            // Two switches in one expression would need each other's text.
            Some(edit) if edits.iter().all(|e| apart(&e.range, &edit.range)) => edits.push(edit),
            _ => refused.push(*number),
        }
    }
    edits.sort_by_key(|e| std::cmp::Reverse(e.range.start));
    let mut out = text.to_owned();
    for edit in edits {
        out.replace_range(edit.range, &edit.text);
    }
    Ok((out, refused))
}

fn apart(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.end <= b.start || b.end <= a.start
}

/// The byte offset of each line.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect())
    }

    /// `column` in characters from 0, as the parser counts.
    fn at(&self, text: &str, line: usize, column: usize) -> usize {
        let start = self.0[line - 1];
        start + text[start..].chars().take(column).map(char::len_utf8).sum::<usize>()
    }
}

struct Search<'a> {
    text: &'a str,
    lines: &'a Lines,
    mutant: &'a Mutant,
    number: u32,
    found: Option<Edit>,
}

impl Search<'_> {
    fn bytes(&self, of: &impl Spanned) -> Range<usize> {
        let span = of.span();
        let at = |place: LineColumn| self.lines.at(self.text, place.line, place.column);
        at(span.start())..at(span.end())
    }

    /// Whether the mutant's place begins where this begins.
    fn here(&self, of: &impl Spanned) -> bool {
        let start = of.span().start();
        Place { line: start.line, column: start.column + 1 } == self.mutant.span.start
    }

    fn is(&self, genre: Genre) -> bool {
        self.mutant.genre == genre
    }

    fn choose(&mut self, range: Range<usize>, on: &str, off: &str) {
        let text = format!("(if crate::mutant_on({}) {{ {on} }} else {{ {off} }})", self.number);
        self.found = Some(Edit { range, text });
    }

    /// A body's first statement becomes the early return.
    fn body(&mut self, block: &syn::Block) {
        let inside = block.stmts.first().is_some_and(|s| self.here(s));
        if self.is(Genre::FnValue) && (self.here(block) || inside) {
            let start = self.bytes(block).start + 1;
            let text =
                format!(" if crate::mutant_on({}) {{ return {}; }}", self.number, self.mutant.replacement);
            self.found = Some(Edit { range: start..start, text });
        }
    }
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.body(&item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.body(&item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        if self.is(Genre::BinaryOperator) && self.here(&expr.op) {
            let (left, right) = (self.bytes(&expr.left), self.bytes(&expr.right));
            let (left, right) = (&self.text[left], &self.text[right]);
            let range = self.bytes(expr);
            let on = format!("{left} {} {right}", self.mutant.replacement);
            let off = self.text[range.clone()].to_owned();
            self.choose(range, &on, &off);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        if self.is(Genre::UnaryOperator) && self.here(&expr.op) {
            let on = self.text[self.bytes(&expr.expr)].to_owned();
            let range = self.bytes(expr);
            let off = self.text[range.clone()].to_owned();
            self.choose(range, &on, &off);
        }
        visit::visit_expr_unary(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if self.is(Genre::MatchArm) && self.here(arm) {
            let number = self.number;
            self.found = Some(match &arm.guard {
                None => {
                    let end = self.bytes(&arm.pat).end;
                    Edit { range: end..end, text: format!(" if !crate::mutant_on({number})") }
                }
                Some((_, guard)) => {
                    let range = self.bytes(guard);
                    let text = format!("!crate::mutant_on({number}) && ({})", &self.text[range.clone()]);
                    Edit { range, text }
                }
            });
        }
        if let Some((_, guard)) = &arm.guard
            && self.is(Genre::MatchArmGuard)
            && self.here(guard)
        {
            let range = self.bytes(guard);
            let off = self.text[range.clone()].to_owned();
            let on = self.mutant.replacement.clone();
            self.choose(range, &on, &off);
        }
        visit::visit_arm(self, arm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::Span;

    fn mutant(genre: Genre, line: usize, column: usize, replacement: &str) -> Mutant {
        let start = Place { line, column };
        Mutant {
            name: String::new(),
            package: String::new(),
            file: String::new(),
            genre,
            replacement: replacement.to_owned(),
            span: Span { start, end: start },
        }
    }

    fn put_one(text: &str, mutant: &Mutant) -> String {
        let (out, refused) = put(text, &[(7, mutant)]).unwrap();
        assert_eq!(refused, [0; 0]);
        out
    }

    #[test]
    fn an_operator_is_chosen_between() {
        let out = put_one("fn f() -> bool { 1 < 2 }", &mutant(Genre::BinaryOperator, 1, 20, "<="));
        assert_eq!(out, "fn f() -> bool { (if crate::mutant_on(7) { 1 <= 2 } else { 1 < 2 }) }");
        let out = put_one("fn f() -> bool { !g() }", &mutant(Genre::UnaryOperator, 1, 18, ""));
        assert_eq!(out, "fn f() -> bool { (if crate::mutant_on(7) { g() } else { !g() }) }");
    }

    #[test]
    fn a_function_returns_at_once() {
        let out = put_one("fn f() -> u8 {\n    3\n}", &mutant(Genre::FnValue, 2, 5, "0"));
        assert_eq!(out, "fn f() -> u8 { if crate::mutant_on(7) { return 0; }\n    3\n}");
    }

    #[test]
    fn an_arm_gets_a_guard() {
        let text = "fn f(n: u8) -> u8 {\n    match n {\n        1 => 2,\n        n if n > 3 => 4,\n        _ => 5,\n    }\n}";
        assert!(
            put_one(text, &mutant(Genre::MatchArm, 3, 9, "")).contains("1 if !crate::mutant_on(7) => 2,")
        );
        assert!(
            put_one(text, &mutant(Genre::MatchArm, 4, 9, ""))
                .contains("n if !crate::mutant_on(7) && (n > 3) => 4,")
        );
        let out = put_one(text, &mutant(Genre::MatchArmGuard, 4, 14, "true"));
        assert!(out.contains("n if (if crate::mutant_on(7) { true } else { n > 3 }) => 4,"), "{out}");
    }

    #[test]
    fn of_two_mutants_of_one_expression_one_is_refused() {
        let (a, b) = (mutant(Genre::BinaryOperator, 1, 20, "<="), mutant(Genre::BinaryOperator, 1, 20, "=="));
        let (_, refused) = put("fn f() -> bool { 1 < 2 }", &[(1, &a), (2, &b)]).unwrap();
        assert_eq!(refused, [2]);
    }
}
