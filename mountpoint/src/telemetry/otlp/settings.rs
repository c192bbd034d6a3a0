//! Parses `--otlp-endpoint` and OpenTelemetry's variables into one setting. Pure: the caller passes the environment.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

/// Default interval between exports, the same as in AWS's mount-s3.
const INTERVAL: Duration = Duration::from_secs(60);
/// Default timeout of an export, from OpenTelemetry's specification.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The path of metrics below an endpoint for all signals.
const PATH: &str = "/v1/metrics";
/// Name of the service, if no setting names one.
const SERVICE: &str = "mount-s3";

/// The receiver of exports, their interval and their form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The URL to which exports are posted.
    pub url: String,
    /// Interval between exports.
    pub interval: Duration,
    /// Time limit of one export.
    pub timeout: Duration,
    /// Whether values count from the last export, not from the start of the mount.
    pub delta: bool,
    /// Headers of each request. They may be secret, and are marked so: their `Debug` shows no value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes of the resource: the service's name and the user's own.
    pub resource: Vec<(String, String)>,
}

/// Reads a variable of the environment; an empty one counts as unset.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Parses the settings; `None`: nothing is exported. Flags precede variables.
    ///
    /// # Errors
    /// A sentence that names the flag or variable and its right form, but not the value of a header.
    pub fn read(
        endpoint: Option<&str>,
        interval_s: Option<u64>,
        variable: Variable<'_>,
    ) -> Result<Option<Self>, String> {
        let of_metrics = |name: &str| {
            let specific = variable(&format!("OTEL_EXPORTER_OTLP_METRICS_{name}"));
            specific.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || variable("OTEL_METRICS_EXPORTER").is_some_and(|value| value.eq_ignore_ascii_case("none"));
        let (url, from) = match (
            endpoint,
            variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
            variable("OTEL_EXPORTER_OTLP_ENDPOINT"),
        ) {
            (Some(endpoint), _, _) => (with_path(endpoint), "--otlp-endpoint"),
            _ if is_off => return Ok(None),
            (_, Some(exact), _) => (exact, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"),
            (_, _, Some(base)) => (with_path(&base), "OTEL_EXPORTER_OTLP_ENDPOINT"),
            (None, None, None) => return Ok(None),
        };
        check_url(&url).map_err(|why| format!("{from}: {why}"))?;
        if let Some(protocol) = of_metrics("PROTOCOL").filter(|protocol| protocol != "http/protobuf") {
            return Err(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is '{protocol}': this exporter speaks http/protobuf only"
            ));
        }
        let millis = |name: &str, value: Option<String>, usual: Duration| match value {
            None => Ok(usual),
            Some(text) => match text.parse::<u64>() {
                Ok(ms @ 1..) => Ok(Duration::from_millis(ms)),
                _ => Err(format!("{name} is '{text}': give milliseconds, from 1 on")),
            },
        };
        let interval = match interval_s {
            Some(seconds) => Duration::from_secs(seconds),
            None => millis("OTEL_METRIC_EXPORT_INTERVAL", variable("OTEL_METRIC_EXPORT_INTERVAL"), INTERVAL)?,
        };
        let preference = variable("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
            .or_else(|| variable("EXPERIMENTAL_MOUNTPOINT_OTLP_METRICS_TEMPORALITY_PREFERENCE"));
        Ok(Some(Self {
            url,
            interval,
            timeout: millis("OTEL_EXPORTER_OTLP_TIMEOUT", of_metrics("TIMEOUT"), TIMEOUT)?,
            delta: !preference.is_some_and(|preference| preference.eq_ignore_ascii_case("cumulative")),
            headers: headers(&of_metrics("HEADERS").unwrap_or_default())?,
            resource: resource(variable),
        }))
    }
}

/// The endpoint with the path for metrics, which is added unless it is there.
fn with_path(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.ends_with(PATH) { endpoint.to_owned() } else { format!("{endpoint}{PATH}") }
}

fn check_url(url: &str) -> Result<(), String> {
    let example = "give an http:// or https:// URL, such as http://localhost:4318";
    let parsed: Uri = url.parse().map_err(|_| example.to_owned())?;
    let has_scheme = matches!(parsed.scheme_str(), Some("http" | "https"));
    let authority = parsed.authority().filter(|_| has_scheme).ok_or_else(|| example.to_owned())?;
    match authority.as_str().contains('@') {
        true => Err("a password does not belong into the URL: OTEL_EXPORTER_OTLP_HEADERS has headers".into()),
        false => Ok(()),
    }
}

/// Parses `name=value` pairs, separated by commas, with percent-encoded values.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(',').filter_map(|pair| pair.split_once('=')).map(|(name, value)| {
        let value = percent_decode_str(value.trim()).decode_utf8_lossy();
        (name.trim().to_owned(), value.into_owned())
    })
}

fn headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let wrong = |name: &str| {
        format!("OTEL_EXPORTER_OTLP_HEADERS: '{name}' has a name or a value that no HTTP header can have")
    };
    pairs(text)
        .map(|(name, value)| {
            let header = HeaderName::try_from(name.as_str()).map_err(|_| wrong(&name))?;
            let mut value = HeaderValue::try_from(value).map_err(|_| wrong(&name))?;
            value.set_sensitive(true);
            Ok((header, value))
        })
        .collect()
}

/// The attributes of the resource. `OTEL_SERVICE_NAME` precedes the `service.name` of `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(variable: Variable<'_>) -> Vec<(String, String)> {
    let mut resource: Vec<_> = pairs(&variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default()).collect();
    let is_name = |(name, _): &(String, String)| name == "service.name";
    match variable("OTEL_SERVICE_NAME") {
        Some(service) => {
            resource.retain(|pair| !is_name(pair));
            resource.push(("service.name".to_owned(), service));
        }
        None if !resource.iter().any(is_name) => {
            resource.push(("service.name".to_owned(), SERVICE.to_owned()))
        }
        None => {}
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        Settings::read(endpoint, None, &variable)
    }

    fn on(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Settings {
        read(endpoint, variables).unwrap().expect("it exports")
    }

    #[test]
    fn nothing_is_exported_unless_a_flag_or_a_variable_says_where_to() {
        assert_eq!(read(None, &[("OTEL_SERVICE_NAME", "x")]), Ok(None));
        let there = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert_eq!(read(None, &[there, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(read(None, &[there, ("OTEL_METRICS_EXPORTER", "none")]), Ok(None));
        assert_eq!(on(None, &[there]).url, "http://c:4318/v1/metrics");
    }

    #[test]
    fn the_flag_wins_and_only_the_endpoint_of_metrics_is_taken_as_it_is() {
        let (all, metrics) = (
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all/"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://m/x"),
        );
        assert_eq!(on(Some("http://flag:4318/"), &[all, metrics]).url, "http://flag:4318/v1/metrics");
        assert_eq!(on(Some("http://flag/v1/metrics"), &[]).url, "http://flag/v1/metrics");
        assert_eq!(on(None, &[all, metrics]).url, "https://m/x");
        assert_eq!(on(None, &[all]).url, "http://all/v1/metrics");
    }

    #[test]
    fn aws_s_defaults_hold_and_variables_change_them() {
        let usual = on(Some("http://c"), &[]);
        assert_eq!((usual.interval, usual.timeout, usual.delta), (INTERVAL, TIMEOUT, true));
        assert_eq!(usual.resource, [("service.name".to_owned(), "mount-s3".to_owned())]);
        let changed = on(
            Some("http://c"),
            &[
                ("OTEL_METRIC_EXPORT_INTERVAL", "1500"),
                ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "200"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "999"),
                ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Cumulative"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a, host.name=h%2Cx"),
                ("OTEL_SERVICE_NAME", "b"),
            ],
        );
        assert_eq!(
            (changed.interval, changed.timeout),
            (Duration::from_millis(1500), Duration::from_millis(200))
        );
        assert!(!changed.delta);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(changed.resource, [pair("host.name", "h,x"), pair("service.name", "b")]);
    }

    #[test]
    fn headers_are_sent_and_never_shown() {
        let settings =
            on(Some("http://c"), &[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hush, x-a=1")]);
        assert_eq!(settings.headers[0].1, "Bearer hush");
        assert_eq!(settings.headers.len(), 2);
        assert!(!format!("{settings:?}").contains("hush"));
        let wrong = read(Some("http://c"), &[("OTEL_EXPORTER_OTLP_HEADERS", "a=hush%0A")]).unwrap_err();
        assert!(wrong.contains("'a'") && !wrong.contains("hush"), "{wrong}");
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (endpoint, variables, words) in [
            ("localhost:4318", &[][..], "--otlp-endpoint: give an http:// or https:// URL"),
            ("ftp://c", &[], "give an http://"),
            ("http://me:key@c", &[], "OTEL_EXPORTER_OTLP_HEADERS"),
            (
                "http://c",
                &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "'grpc': this exporter speaks http/protobuf",
            ),
            ("http://c", &[("OTEL_METRIC_EXPORT_INTERVAL", "soon")], "OTEL_METRIC_EXPORT_INTERVAL is 'soon'"),
        ] {
            let said = read(Some(endpoint), variables).unwrap_err();
            assert!(said.contains(words) && !said.contains("key"), "{said}");
        }
    }
}
