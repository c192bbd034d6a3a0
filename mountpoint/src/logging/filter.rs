//! Translates log filters for AWS's mount-s3 to the names of this engine.

/// The targets of AWS's mount-s3, with their replacements: `mountpoint_s3...` is this engine; its client and the CRT are this engine's S3
/// room.
const ALIASES: [(&str, &[&str]); 4] = [
    ("mountpoint_s3_client", &["mountpoint::s3"]),
    ("mountpoint_s3_crt", &["mountpoint::s3"]),
    ("awscrt", &["mountpoint::s3"]),
    ("mountpoint_s3", &["mountpoint", "mount_s3"]),
];

/// The filter with the targets of AWS's mount-s3 replaced. Module paths below a target (`mountpoint_s3_fs::prefetch`) are dropped, because
/// the modules differ.
pub(super) fn in_our_names(filter: &str) -> String {
    let directives = filter.split(',').flat_map(|directive| {
        let end = directive.find(['=', '[']).unwrap_or(directive.len());
        let (target, rest) = directive.split_at(end);
        let target = target.trim();
        let alias = ALIASES.iter().find(|(name, _)| target.starts_with(name));
        match alias {
            Some((_, ours)) => ours.iter().map(|name| format!("{name}{rest}")).collect(),
            None => vec![directive.to_owned()],
        }
    });
    directives.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_aws_are_ours_and_all_others_stay() {
        for (theirs, ours) in [
            ("debug", "debug"),
            ("warn,mountpoint_s3=info", "warn,mountpoint=info,mount_s3=info"),
            ("mountpoint_s3_fs::prefetch=trace", "mountpoint=trace,mount_s3=trace"),
            ("awscrt=off,mountpoint_s3_client=debug", "mountpoint::s3=off,mountpoint::s3=debug"),
            ("mountpoint_s3", "mountpoint,mount_s3"),
            ("mountpoint::upload=debug,mount_s3=warn", "mountpoint::upload=debug,mount_s3=warn"),
            ("mountpoint_s3[op{ino=1}]=trace", "mountpoint[op{ino=1}]=trace,mount_s3[op{ino=1}]=trace"),
        ] {
            assert_eq!(in_our_names(theirs), ours);
            assert!(tracing_subscriber::EnvFilter::try_new(ours).is_ok(), "{ours}");
        }
    }
}
