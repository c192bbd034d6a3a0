//! The command line of `scality-csi-controller`, as a container starts it.

use std::process::Output;

use testkit::settings::{self, unwrapped};

const CONTROLLER: &str = env!("CARGO_BIN_EXE_scality-csi-controller");

fn controller(args: &[&str], environment: &[(&str, &str)]) -> Output {
    settings::run(CONTROLLER, args, environment)
}

#[test]
fn an_invalid_setting_is_named_with_flag_and_variable_in_one_line() {
    let invalid = [
        ("--log-format", "LOG_FORMAT", "xml", "neither text nor json"),
        ("--headroom-image-pull-policy", "MOUNTPOINT_HEADROOM_IMAGE_PULL_POLICY", "never", "IfNotPresent"),
        ("--headroom-pod-labels", "MOUNTPOINT_HEADROOM_POD_LABELS", "team", "JSON object"),
        ("--mountpoint-image-pull-policy", "MOUNTPOINT_IMAGE_PULL_POLICY", "Sometimes", "IfNotPresent"),
        ("--mountpoint-pod-labels", "MOUNTPOINT_POD_LABELS", "{\"a\": 1}", "JSON object"),
        (
            "--mountpoint-pod-annotations",
            "MOUNTPOINT_POD_ANNOTATIONS",
            "{\"s3.csi.scality.com/needs-unmount\": \"true\"}",
            "needs-unmount",
        ),
        ("--mountpoint-pod-env", "MOUNTPOINT_POD_ENV", "{\"AWS_PROFILE\": \"HUSH\"}", "AWS_PROFILE"),
        ("--mountpoint-pod-env", "MOUNTPOINT_POD_ENV", "HTTPS_PROXY=http://user:HUSH@proxy", "JSON object"),
        ("--mountpoint-pod-se-linux-options", "MOUNTPOINT_POD_SE_LINUX_OPTIONS", "[1]", "JSON object"),
        ("--mountpoint-pod-template", "MOUNTPOINT_POD_TEMPLATE", "{\"hostNetwork\": true}", "JSON object"),
        (
            "--mountpoint-pod-template",
            "MOUNTPOINT_POD_TEMPLATE",
            "{\"securityContext\": {\"runAsUser\": 0}}",
            "runAsUser is 0",
        ),
        ("--mountpoint-resources-requests-cpu", "MOUNTPOINT_RESOURCES_REQUESTS_CPU", "much", "100m"),
        ("--mountpoint-resources-requests-memory", "MOUNTPOINT_RESOURCES_REQUESTS_MEMORY", "much", "256Mi"),
        ("--mountpoint-resources-limits-cpu", "MOUNTPOINT_RESOURCES_LIMITS_CPU", "much", "100m"),
        ("--mountpoint-resources-limits-memory", "MOUNTPOINT_RESOURCES_LIMITS_MEMORY", "much", "256Mi"),
        ("--mountpoint-workload-share-percent", "MOUNTPOINT_WORKLOAD_SHARE_PERCENT", "101", "0..=100"),
        ("--mountpoint-metrics-port", "MOUNTPOINT_METRICS_PORT", "65536", "65535"),
        ("--inline-volumes", "INLINE_VOLUMES", "yes", "must be true or false"),
        ("--pod-identity-agent", "POD_IDENTITY_AGENT", "1", "must be true or false"),
        ("--health-address", "HEALTH_ADDRESS", "somewhere", "invalid socket address"),
    ];
    settings::each_is_refused_in_one_line(
        CONTROLLER,
        &invalid,
        &["--inline-volumes", "--pod-identity-agent"],
    );
}

#[test]
fn a_blank_variable_counts_as_unset() {
    let blank = ["MOUNTPOINT_METRICS_PORT", "INLINE_VOLUMES", "MOUNTPOINT_POD_TEMPLATE", "HEALTH_ADDRESS"];
    let said = controller(&[], &blank.map(|name| (name, " ")));
    let log = String::from_utf8_lossy(&said.stderr);
    assert!(log.contains("--mountpoint-image (MOUNTPOINT_IMAGE) is missing"), "{log}");
}

#[test]
fn the_help_lists_each_variable_of_the_chart_and_no_proxy() {
    let said = controller(&["--help"], &[("MOUNTPOINT_POD_ENV", "{\"HTTP_PROXY\": \"http://a:HUSH@p\"}")]);
    let help = unwrapped(said.stdout);
    assert!(!help.contains("HUSH"), "{help}");
    let chart = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../helm/scality-mountpoint-s3-csi-driver/templates/controller.yaml"
    );
    let chart = std::fs::read_to_string(chart).expect("the chart is here");
    let (_, container) =
        chart.split_once("- name: s3-pod-reconciler").expect("the container of the reconciler");
    let names = container.lines().filter_map(|line| line.trim().strip_prefix("- name: "));
    let names: Vec<_> =
        names.filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(help.contains(&format!("[env: {name}")), "{name}: {help}");
    }
}
