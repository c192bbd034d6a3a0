//! The state of a mount as text.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, HumanDuration};
use mountpoint::telemetry::{ErrorLine, Hits, Origin, Status};
use time::OffsetDateTime;

use super::ask::Seen;
use super::{printable, quoted};

/// One mount, in several lines. The texts may come from another user: they must not command the terminal, nor break out of a command that
/// the output proposes.
pub(super) fn seen(seen: &Seen) -> String {
    match seen {
        Seen::Serving(status) => serving(status),
        Seen::Hangs(origin) => format!(
            "{}\n  HANGS       process {} does not answer; look at its log, or end it: kill -9 {} && umount -l {}\n",
            title(origin),
            origin.pid,
            origin.pid,
            word(&origin.mount_point)
        ),
        Seen::Gone { mount_point, still_mounted: true } => format!(
            "{}\n  GONE        its process has ended, and every access fails; remove the mount: umount -l {}\n",
            printable(mount_point.display()),
            word(mount_point.display())
        ),
        Seen::Gone { mount_point, still_mounted: false } => {
            format!(
                "{}\n  GONE        unmounted, and its process has ended\n",
                printable(mount_point.display())
            )
        }
        Seen::NotYours { mount_point, uid } => format!(
            "{}\n  NOT YOURS   user {uid} mounted it; this user or root may ask for its state\n",
            printable(mount_point.display())
        ),
        Seen::Silent { mount_point, answers: false } => format!(
            "{}\n  SILENT      it does not answer, and has no socket to ask; look for its process: pgrep -af mount-s3\n",
            printable(mount_point.display())
        ),
        Seen::Silent { mount_point, answers: true } => format!(
            "{}\n  SILENT      mounted, without a socket to ask: its log says why ('mount-s3-ctl will not find this mount')\n",
            printable(mount_point.display())
        ),
    }
}

fn title(origin: &Origin) -> String {
    let prefix = match origin.prefix.as_str() {
        "" => String::new(),
        prefix => format!("/{prefix}"),
    };
    printable(format_args!("{}{prefix} at {}", origin.bucket, origin.mount_point))
}

/// A word of a proposed command.
fn word(text: impl std::fmt::Display) -> String {
    quoted(&printable(text))
}

fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// The state of a mount that answered.
pub(super) fn serving(status: &Status) -> String {
    let (origin, now, requests) = (&status.origin, &status.throughput, &status.requests);
    let mut text = format!("{}\n", title(origin));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<11} {}", printable(value));
    };
    let uptime = HumanDuration(Duration::from_secs(status.uptime_s));
    line(
        "up",
        format!("{uptime}; process {} of user {}, mount-s3 {}", origin.pid, origin.uid, origin.version),
    );
    if !origin.flags.is_empty() {
        line("flags", origin.flags.join(" "));
    }
    line(
        "now",
        format!(
            "programs read {}/s, write {}/s; the store sends {}/s, takes {}/s; {} requests/s of the kernel, {} to the store",
            bytes(now.read_bytes_per_s),
            bytes(now.written_bytes_per_s),
            bytes(now.received_bytes_per_s),
            bytes(now.sent_bytes_per_s),
            HumanCount(now.fuse_requests_per_s),
            HumanCount(now.s3_requests_per_s)
        ),
    );
    line(
        "requests",
        format!(
            "{} of the kernel ({} errors), {} to the store ({} sent again, {} failed)",
            HumanCount(requests.fuse),
            HumanCount(requests.fuse_errors),
            HumanCount(requests.s3),
            HumanCount(requests.s3_retries),
            HumanCount(requests.s3_errors)
        ),
    );
    line("hits", hits(&status.hits));
    let memory = &status.memory;
    line(
        "memory",
        format!(
            "{} of process memory; data: {} of {} ({} waited for, {} read ahead, {} being written)",
            bytes(memory.rss_bytes),
            bytes(memory.demand_bytes + memory.ahead_bytes + memory.write_bytes),
            bytes(memory.target_bytes),
            bytes(memory.demand_bytes),
            bytes(memory.ahead_bytes),
            bytes(memory.write_bytes)
        ),
    );
    if let Some(cache) = &status.disk_cache {
        line(
            "disk cache",
            format!(
                "{} in {}; {} blocks evicted, {} not kept, {} corrupt",
                bytes(cache.used_bytes),
                cache.directory,
                HumanCount(cache.evictions),
                HumanCount(cache.puts_dropped),
                HumanCount(cache.corrupt)
            ),
        );
    }
    if let Some(stage) = &status.stage {
        line(
            "stage",
            format!(
                "{} of {} in {}; {} files ({}) wait to be stored",
                bytes(stage.used_bytes),
                bytes(stage.limit_bytes),
                stage.directory,
                HumanCount(stage.pending_files),
                bytes(stage.pending_bytes)
            ),
        );
        if stage.kept_files > 0 {
            line(
                "KEPT",
                format!(
                    "{} files ({}) could not be stored: mount-s3-ctl kept {}",
                    HumanCount(stage.kept_files),
                    bytes(stage.kept_bytes),
                    word(&stage.directory)
                ),
            );
        }
    }
    line("open", format!("{} for reading, {} for writing", status.open_files.read, status.open_files.write));
    for upload in &status.uploads {
        line("upload", format!("{}: {}, {}", upload.key, bytes(upload.bytes), upload.state));
    }
    for error in &status.errors {
        line("log", error_line(error));
    }
    text
}

fn hits(hits: &Hits) -> String {
    let percent =
        |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
    format!(
        "{} of reads did not wait; {} of blocks were in the disk cache",
        percent(hits.reads),
        percent(hits.disk_cache)
    )
}

fn error_line(error: &ErrorLine) -> String {
    let at = i64::try_from(error.at_s).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    let at =
        at.and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok()).unwrap_or_default();
    format!("{at} {} {}", error.level, error.message)
}

/// Latencies, one line per kind of request.
pub(super) fn latencies(status: &Status) -> String {
    let mut text =
        format!("  {:<5} {:<24} {:>12} {:>12} {:>12}\n", "", "request", "count", "p50 <= ms", "p99 <= ms");
    for latency in &status.latencies {
        let ms = |us: u64| format!("{:.3}", us as f64 / 1e3);
        let _ = writeln!(
            text,
            "  {:<5} {:<24} {:>12} {:>12} {:>12}",
            printable(&latency.of),
            printable(&latency.request),
            HumanCount(latency.count).to_string(),
            ms(latency.p50_us),
            ms(latency.p99_us)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mountpoint::telemetry::{Cache, Latency, Stage, Throughput, Upload};

    fn status() -> Status {
        Status {
            origin: Origin {
                bucket: "b".into(),
                prefix: "p/".into(),
                mount_point: "/mnt".into(),
                ..Origin::default()
            },
            throughput: Throughput { read_bytes_per_s: 3 << 20, ..Throughput::default() },
            hits: Hits { reads: Some(0.9876), disk_cache: None },
            uploads: vec![Upload { key: "a\x1b[2J".into(), bytes: 1 << 30, state: "writing".into() }],
            errors: vec![ErrorLine { at_s: 0, level: "WARN".into(), message: "key \x1b[2J is odd".into() }],
            stage: Some(Stage {
                directory: "/a b".into(),
                kept_files: 2,
                kept_bytes: 5 << 20,
                ..Stage::default()
            }),
            ..Status::default()
        }
    }

    #[test]
    fn a_state_says_what_is_mounted_how_fast_it_is_and_what_went_wrong() {
        let text = serving(&status());
        for part in [
            "b/p/ at /mnt\n",
            "programs read 3.00 MiB/s",
            "98.8 % of reads",
            "- of blocks",
            "1.00 GiB, writing",
            "KEPT        2 files (5.00 MiB) could not be stored: mount-s3-ctl kept '/a b'",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(text.contains("1970-01-01T00:00:00Z WARN"), "{text}");
    }

    #[test]
    fn no_word_of_a_state_speaks_to_the_terminal_or_begins_a_line() {
        let bad = "a\x1b[2J\r\n\u{9b}b".to_owned();
        let point = std::path::PathBuf::from(&bad);
        let origin = Origin {
            bucket: bad.clone(),
            prefix: bad.clone(),
            mount_point: bad.clone(),
            flags: vec![bad.clone()],
            cache: Some(bad.clone()),
            version: bad.clone(),
            ..Origin::default()
        };
        let status = Status {
            origin: origin.clone(),
            disk_cache: Some(Cache { directory: bad.clone(), ..Cache::default() }),
            stage: Some(Stage { directory: bad.clone(), kept_files: 1, ..Stage::default() }),
            uploads: vec![Upload { key: bad.clone(), bytes: 1, state: bad.clone() }],
            errors: vec![ErrorLine { at_s: 0, level: bad.clone(), message: bad.clone() }],
            latencies: vec![Latency { of: bad.clone(), request: bad, count: 1, p50_us: 1, p99_us: 1 }],
            ..Status::default()
        };
        let table = latencies(&status);
        assert_eq!(table.lines().count(), 2, "{table:?}");
        let states = [
            Seen::Serving(Box::new(status)),
            Seen::Hangs(Box::new(origin)),
            Seen::Gone { mount_point: point.clone(), still_mounted: true },
            Seen::Gone { mount_point: point.clone(), still_mounted: false },
            Seen::NotYours { mount_point: point.clone(), uid: 7 },
            Seen::Silent { mount_point: point.clone(), answers: true },
            Seen::Silent { mount_point: point, answers: false },
        ];
        for text in states.iter().map(seen).chain([table]) {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
            assert!(text.lines().skip(1).all(|line| line.starts_with("  ")), "{text:?}");
        }
    }

    #[test]
    fn a_directory_is_one_word_of_the_command_that_removes_it() {
        let mount_point = "/m; touch x $(y) 'z'".to_owned();
        let word = r"umount -l '/m; touch x $(y) '\''z'\'''";
        let gone = Seen::Gone { mount_point: mount_point.clone().into(), still_mounted: true };
        let hangs = Seen::Hangs(Box::new(Origin { mount_point, ..Origin::default() }));
        for text in [seen(&gone), seen(&hangs)] {
            assert!(text.ends_with(&format!("{word}\n")), "{text}");
        }
    }

    #[test]
    fn what_does_not_serve_says_what_to_do() {
        let point = std::path::PathBuf::from("/mnt");
        for (state, words) in [
            (Seen::Hangs(Box::new(status().origin)), "HANGS"),
            (Seen::Gone { mount_point: point.clone(), still_mounted: true }, "umount -l /mnt"),
            (Seen::NotYours { mount_point: point.clone(), uid: 7 }, "user 7 mounted it"),
            (Seen::Silent { mount_point: point.clone(), answers: true }, "its log says why"),
            (Seen::Silent { mount_point: point, answers: false }, "look for its process"),
        ] {
            let text = seen(&state);
            assert!(text.contains(words), "{text}");
        }
    }
}
