//! Parses the dates that stores send: HTTP's forms in headers, ISO 8601 in documents, and variants of both. The result has whole seconds.
//! Pure.

use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use crate::object::whole_second;

/// Longest text that is parsed as a date, in bytes. All forms are shorter; a longer text is not a date.
const TEXT_MAX: usize = 64;

/// Parses the date of a header: `Wed, 21 Oct 2015 07:28:00 GMT`, or another form.
pub(crate) fn http_date(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    by_library(text, Format::HttpDate).or_else(|| tolerant(text))
}

/// Parses the date of an XML document: `2009-10-12T17:50:30.000Z`, or another form.
pub(crate) fn xml_date(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    by_library(text, Format::DateTimeWithOffset).or_else(|| tolerant(text))
}

fn by_library(text: &str, format: Format) -> Option<SystemTime> {
    if text.len() > TEXT_MAX {
        return None;
    }
    SystemTime::try_from(DateTime::from_str(text, format).ok()?).ok().map(whole_second)
}

/// Parses a date in any form of HTTP or ISO 8601.
fn tolerant(text: &str) -> Option<SystemTime> {
    if text.len() > TEXT_MAX || !text.is_ascii() {
        return None;
    }
    iso(text).or_else(|| by_words(text))
}

/// Parses ISO 8601, also with a space instead of `T`, without a zone (then UTC), or with a zone that has no colon.
fn iso(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let mut text = format!("{date}T{}", time.trim());
    let zone = text.rfind(['+', '-', 'Z', 'z']).filter(|at| *at > date.len());
    match zone.map(|at| text.split_at(at)) {
        None => text.push('Z'),
        Some((before, zone)) if zone.len() == 5 && !zone.contains(':') => {
            text = format!("{before}{}:{}", &zone[..3], &zone[3..]);
        }
        Some((before, "z")) => text = format!("{before}Z"),
        Some(_) => {}
    }
    by_library(&text, Format::DateTimeWithOffset)
}

/// Parses a date in one of HTTP's three forms or in that of mail, by putting the words into mail's order.
fn by_words(text: &str) -> Option<SystemTime> {
    let is_name = |word: &str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    let mut words: Vec<&str> = text.split([' ', ',', '\t']).filter(|word| !word.is_empty()).collect();
    // "Nov 6 08:49:37 1994" begins with a month, not with a day.
    let is_month = words.len() == 4 && words[2].contains(':') && !words[1].contains('-');
    if words.len() > 1 && is_name(words[0]) && !is_month {
        words.remove(0);
    }
    let dashed: Vec<&str> = words.first()?.split('-').collect();
    let (day, month, year, clock, zone) = match (&*words, &*dashed) {
        // Sunday, 06-Nov-94 08:49:37 GMT
        ([_, clock, zone @ ..], [day, month, year]) => (*day, *month, *year, *clock, zone.first()),
        // Sun Nov  6 08:49:37 1994, perhaps with a zone before the year
        ([month, day, clock, year], _) if is_name(month) => (*day, *month, *year, *clock, None),
        ([month, day, clock, zone, year], _) if is_name(month) => (*day, *month, *year, *clock, Some(zone)),
        // 6 Nov 1994 08:49:37 GMT
        ([day, month, year, clock, zone @ ..], _) => (*day, *month, *year, *clock, zone.first()),
        _ => return None,
    };
    let century = match (year.len(), year.parse::<u8>()) {
        (2, Ok(70..)) => "19",
        (2, Ok(_)) => "20",
        _ => "",
    };
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let zone = zone.map_or("GMT", |zone| match zone.to_ascii_uppercase().as_str() {
        "UTC" | "UT" | "Z" | "GMT" => "GMT",
        _ => zone,
    });
    let mail = format!("{day} {month} {century}{year} {clock} {}", zone.replace(':', ""));
    OffsetDateTime::parse(&mail, &Rfc2822).ok().map(|date| whole_second(date.into()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_date_is_read_in_each_form_that_stores_send() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777); // 6 Nov 1994, 08:49:37
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37.999 GMT",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            "Sun, 06 Nov 1994 10:49:37 +0200",
            "06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun Nov  6 08:49:37 UTC 1994",
            "1994-11-06T08:49:37Z",
            "1994-11-06T08:49:37.999Z",
            "1994-11-06T08:49:37",
            "1994-11-06 08:49:37",
            "1994-11-06T08:49:37.5",
            "1994-11-06T10:49:37+02:00",
            "1994-11-06T10:49:37+0200",
            " 1994-11-06T08:49:37z ",
        ] {
            assert_eq!(http_date(text), Some(at), "{text}");
            assert_eq!(xml_date(text), Some(at), "{text}");
        }
        for text in
            ["", "soon", "-1", "Wed, 41 Oct 2015 07:28:30 GMT", "1994-13-06T08:49:37Z", &"9".repeat(70)]
        {
            assert_eq!((http_date(text), xml_date(text)), (None, None), "{text}");
        }
        assert!(http_date("Fri, 31 Dec 9999 23:59:59 GMT").is_some());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_of_dates_panic(text in ".{0,70}", near in "[A-Z][a-z]{2}[ ,0-9:+TZ-]{0,40}") {
            let _ = (http_date(&text), xml_date(&text), http_date(&near), xml_date(&near));
        }
    }
}
