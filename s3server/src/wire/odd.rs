//! Answers in odd forms, for faults: headers that other stores add, omit or write differently, and listings with odd entries.
//! Pure.

use http::header::{CONTENT_LENGTH, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::fault::{Effect, EtagForm};

/// Whether an effect changes the XML document of an answer.
pub(super) fn concerns_document(effect: &Effect) -> bool {
    matches!(effect, Effect::Entry { .. } | Effect::Root { .. })
}

/// Changes the headers of a successful answer. A value that is not valid in a header changes nothing.
pub(super) fn change_headers(headers: &mut HeaderMap, effects: &[Effect]) {
    for effect in effects {
        match effect {
            Effect::Header { name, value } => {
                let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
                match value.as_deref().map(HeaderValue::from_str) {
                    Some(Ok(value)) => drop(headers.insert(name, value)),
                    Some(Err(_)) => {}
                    None => drop(headers.remove(name)),
                }
            }
            Effect::Etag { form } => {
                let Some(text) = headers.get(ETAG).and_then(|etag| etag.to_str().ok()) else { continue };
                if let Ok(value) = HeaderValue::from_str(&spelled(text, *form)) {
                    headers.insert(ETAG, value);
                }
            }
            Effect::MoreHeaders { count } => {
                for n in 0..*count {
                    let name = HeaderName::from_bytes(format!("x-amz-meta-more-{n}").as_bytes());
                    if let Ok(name) = name {
                        headers.insert(name, HeaderValue::from_static("1"));
                    }
                }
            }
            _ => {}
        }
    }
}

fn spelled(etag: &str, form: EtagForm) -> String {
    match form {
        EtagForm::Weak => format!("W/{etag}"),
        EtagForm::Unquoted => etag.trim_matches('"').to_owned(),
        EtagForm::Upper => etag.to_ascii_uppercase(),
    }
}

/// Changes the entries and the root of an answer's XML document. Removes Content-Length, since the document's length may change.
pub(super) fn change_document(headers: &mut HeaderMap, document: &[u8], effects: &[Effect]) -> Vec<u8> {
    headers.remove(CONTENT_LENGTH);
    let mut text = String::from_utf8_lossy(document).into_owned();
    for effect in effects {
        match effect {
            Effect::Entry { key, element, text: said } => {
                text = with_entries(&text, key.as_deref().unwrap_or(""), element, said.as_deref());
            }
            Effect::Root { name } => {
                for old in ["<ListBucketResult", "</ListBucketResult"] {
                    let new = old.replace("ListBucketResult", name);
                    text = text.replacen(old, &new, 1);
                }
            }
            _ => {}
        }
    }
    text.into_bytes()
}

/// The document in which `element` is set, or removed, in each object whose key contains `key`.
fn with_entries(document: &str, key: &str, element: &str, said: Option<&str>) -> String {
    const OPEN: &str = "<Contents>";
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let mut changed = String::with_capacity(document.len());
    for (n, piece) in document.split(OPEN).enumerate() {
        if n > 0 {
            changed.push_str(OPEN);
        }
        let its_key = piece.split_once("<Key>").and_then(|(_, rest)| rest.split_once("</Key>"));
        let is_meant = n > 0 && its_key.is_some_and(|(its_key, _)| its_key.contains(key));
        match piece.split_once(&open).and_then(|(before, rest)| Some((before, rest.split_once(&close)?))) {
            Some((before, (_, behind))) if is_meant => {
                changed.push_str(before);
                if let Some(said) = said {
                    changed.extend([&*open, said, &*close]);
                }
                changed.push_str(behind);
            }
            _ => changed.push_str(piece),
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_of_the_objects_that_are_meant_is_set_or_left_out() {
        let page = "<L><Contents><Key>a</Key><ETag>1</ETag></Contents><Contents><Key>b</Key><ETag>2</ETag></Contents></L>";
        assert_eq!(with_entries(page, "b", "ETag", Some("x")), page.replace('2', "x"));
        assert_eq!(with_entries(page, "a", "ETag", None), page.replace("<ETag>1</ETag>", ""));
        assert_eq!(with_entries(page, "", "Size", Some("x")), page);
    }
}
