//! Applies the advice of the findings to a command line: flags to add, to set or to leave out. Pure.

/// One change of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Add this flag, which has no value.
    Add(&'static str),
    /// Set this flag to this value, and drop any other value.
    Set(&'static str, String),
    /// Leave out this flag, which has no value.
    LeaveOut(&'static str),
}

/// The words of a command line (without bucket and directory) after the advice was followed.
#[must_use]
pub(crate) fn applied(words: &[String], advice: &[Advice]) -> Vec<String> {
    let mut words = words.to_vec();
    for advice in advice {
        match advice {
            Advice::Add(flag) if words.iter().any(|word| word == flag) => {}
            Advice::Add(flag) => words.push((*flag).to_owned()),
            Advice::Set(flag, value) => {
                words = without(words, flag);
                words.extend([(*flag).to_owned(), value.clone()]);
            }
            Advice::LeaveOut(flag) => words.retain(|word| word != flag),
        }
    }
    words
}

/// The words without this flag and its value.
fn without(words: Vec<String>, flag: &str) -> Vec<String> {
    let mut rest = Vec::with_capacity(words.len());
    let mut is_value = false;
    for word in words {
        if std::mem::take(&mut is_value) {
            continue;
        }
        if word == flag {
            is_value = true;
        } else if word.strip_prefix(flag).is_none_or(|value| !value.starts_with('=')) {
            rest.push(word);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_added_once_replaced_with_their_value_and_left_out() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let region = Advice::Set("--region", "eu-west-3".into());
        for (before, advice, after) in [
            ("--endpoint-url http://s", Advice::Add("--read-only"), "--endpoint-url http://s --read-only"),
            ("--read-only", Advice::Add("--read-only"), "--read-only"),
            ("--region us-east-1 --read-only", region.clone(), "--read-only --region eu-west-3"),
            ("--region=us-east-1", region.clone(), "--region eu-west-3"),
            ("--regional x", region, "--regional x --region eu-west-3"),
            ("--a --force-path-style --b", Advice::LeaveOut("--force-path-style"), "--a --b"),
        ] {
            assert_eq!(applied(&words(before), &[advice]), words(after), "{before}");
        }
    }
}
