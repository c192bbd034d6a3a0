//! The form of log lines. Driver, reconciler, mounters and engines of one release use the same form.

use std::fmt;
use std::str::FromStr;

/// The variable that names the form of log lines, for every program.
pub const VARIABLE: &str = "LOG_FORMAT";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for human readers.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" | "" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is neither text nor json")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_reads_as_it_is_written_and_nothing_else_is_one() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!("".parse(), Ok(LogFormat::Text), "a variable that is empty");
        assert!("JSON".parse::<LogFormat>().unwrap_err().contains("JSON"));
    }
}
