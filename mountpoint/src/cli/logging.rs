//! Flags for the destination and the level of the log, and for the destination of metrics.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

use crate::telemetry::Listen;
use crate::telemetry::otlp::Settings;

/// The destination of the log.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Logging options")]
pub struct LoggingOptions {
    /// Write the log to a file in this directory [default: syslog]
    #[arg(short, long, value_name = "DIRECTORY")]
    pub log_directory: Option<PathBuf>,
    /// Form of a log line: text, or a JSON object
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Log every request
    #[arg(short, long)]
    pub debug: bool,
    /// Accepted for scripts of AWS's mount-s3; there is no CRT here, --debug shows the requests
    #[arg(long, hide = true)]
    pub(crate) debug_crt: bool,
    /// Log the changes of the metrics every 5 s
    #[arg(long)]
    pub(crate) log_metrics: bool,
    /// Serve metrics for Prometheus at /metrics, and /healthz, on this address or Unix socket
    #[arg(long, value_name = "ADDRESS|unix:PATH")]
    pub(crate) metrics_listen: Option<Listen>,
    /// Answer the node's CSI driver, a process of root, on this Unix socket; for Mountpoint Pods
    #[arg(long, value_name = "PATH")]
    pub(crate) control_socket: Option<PathBuf>,
    /// Export metrics by OTLP (http/protobuf) to the collector at this URL; OTEL_* variables are understood too
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    /// Seconds between two exports [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "otlp_endpoint", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) otlp_export_interval: Option<u64>,
    /// Log nothing
    #[arg(long, conflicts_with_all = ["log_directory", "debug", "debug_crt", "log_metrics"])]
    pub no_log: bool,
    /// A tracing-subscriber filter in place of the flags above
    #[arg(long, env = "MOUNTPOINT_LOG", hide = true)]
    pub log_filter: Option<String>,
}

impl LoggingOptions {
    /// Checks the flags without the environment: the engine may run with other variables than this process.
    pub(crate) fn check(&self) -> Result<(), String> {
        Settings::read(self.otlp_endpoint.as_deref(), self.otlp_export_interval, &|_| None).map(drop)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}
