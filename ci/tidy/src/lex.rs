//! Cuts a Rust source into the tokens that the rules need.
//!
//! Comments, numbers and lifetimes have no token; strings and characters are skipped as a whole, so nothing in them
//! is taken for code.

/// A token that some rule needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Ident(String),
    Str(String),
    PathSep,
    Arrow,
    Punct(char),
}

/// Cuts a source into tokens, each with its line, from 1.
pub(crate) fn lex(text: &str) -> Vec<(Token, usize)> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let (mut i, mut line) = (0, 1);
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    while i < chars.len() {
        let start = i;
        match chars[i] {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && chars[i] != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => i = comment_end(&chars, i),
            '"' => {
                i = string_end(&chars, i);
                tokens.push((Token::Str(chars[start + 1..i.max(start + 2) - 1].iter().collect()), line));
            }
            'r' | 'b' | 'c' if raw_hashes(&chars, i).is_some() => {
                let (open, hashes) = raw_hashes(&chars, i).unwrap_or_default();
                let end = format!("\"{}", "#".repeat(hashes));
                let rest: String = chars[open..].iter().collect();
                let body = rest.split(&end).next().unwrap_or_default().to_owned();
                i = (open + body.chars().count() + 1 + hashes).min(chars.len());
                tokens.push((Token::Str(body), line));
            }
            'b' | 'c' if at(i + 1) == '"' => i += 1,
            '\'' => i = quote_end(&chars, i),
            c if c.is_alphabetic() || c == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
                tokens.push((Token::Ident(chars[start..i].iter().collect()), line));
            }
            c if c.is_ascii_digit() => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1;
                }
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                tokens.push((Token::PathSep, line));
            }
            '=' if at(i + 1) == '>' => {
                i += 2;
                tokens.push((Token::Arrow, line));
            }
            c => {
                i += 1;
                if !c.is_whitespace() {
                    tokens.push((Token::Punct(c), line));
                }
            }
        }
        line += chars[start..i].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

/// The position after a block comment, which may contain others.
fn comment_end(chars: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start, 0);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

/// The position after the string literal that begins at `start`.
fn string_end(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

/// The position of the text, and the number of closing hashes, of a raw string (`r"`, `r#"`, `br#"`); `None` if there is none.
fn raw_hashes(chars: &[char], start: usize) -> Option<(usize, usize)> {
    let mut i = start + usize::from(chars[start] != 'r');
    if chars.get(i) != Some(&'r') {
        return None;
    }
    i += 1;
    let hashes = chars[i..].iter().take_while(|c| **c == '#').count();
    (chars.get(i + hashes) == Some(&'"')).then_some((i + hashes + 1, hashes))
}

/// The position after a character literal, or after a lifetime.
fn quote_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => {
            let close = chars[(start + 3).min(chars.len())..].iter().position(|c| *c == '\'');
            close.map_or(chars.len(), |n| start + 3 + n + 1)
        }
        (Some(_), Some('\'')) => start + 3,
        _ => {
            // This is a lifetime: its name must not become an identifier.
            let name = chars[start + 1..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
            start + 1 + name
        }
    }
}
