//! Metrics for Prometheus about the engines of a node's volumes. Enters: the present usage of each engine. Leaves: text after the
//! page of the node's calls. A number that an engine does not report has no line.
//!
//! Never here: a request to an engine; a number that is kept for the next page.

use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::mounter::{Usage, VolumeUsage};

/// The last line of a page.
const END: &str = "# EOF\n";

/// Labels of a series: those of the reconciler's `attached_workloads`, and the Mountpoint Pod, because a volume may have several on a node.
type Labels = Vec<(&'static str, String)>;

/// The page of a node's calls, with the metrics of these volumes.
#[must_use]
pub fn page(calls: &str, node: &str, volumes: &[VolumeUsage], is_outdated: Option<bool>) -> String {
    let mut registry = Registry::with_prefix("mount_s3_csi_volume");
    let gauge = |value: fn(&Usage) -> Option<u64>| {
        family(node, volumes, value, |gauge: &Gauge, number| {
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        })
    };
    let memory = gauge(|usage| usage.memory_bytes);
    let limits = gauge(|usage| usage.memory_limit_bytes);
    let files = gauge(|usage| usage.kernel_files);
    let cpu = family(
        node,
        volumes,
        |usage| usage.cpu_us,
        |counter: &Counter<f64>, us| {
            counter.inc_by(us as f64 / 1e6);
        },
    );
    let kills = family(
        node,
        volumes,
        |usage| usage.oom_kills,
        |counter: &Counter, kills| {
            counter.inc_by(kills);
        },
    );
    let help = "Memory of the Mountpoint Pod, without cached pages that the kernel would take first";
    add(&mut registry, memory, |to, all| to.register_with_unit("memory", help, Unit::Bytes, all));
    let help = "The limit of that memory";
    add(&mut registry, limits, |to, all| to.register_with_unit("memory_limit", help, Unit::Bytes, all));
    let help = "Time of CPU that the Mountpoint Pod took";
    add(&mut registry, cpu, |to, all| to.register_with_unit("cpu", help, Unit::Seconds, all));
    let help = "Engines of the Mountpoint Pod that the kernel killed for want of memory";
    add(&mut registry, kills, |to, all| to.register("oom_kills", help, all));
    let help = "Files of the Mountpoint Pod's cache that the kernel reads by itself";
    add(&mut registry, files, |to, all| to.register("kernel_read_files", help, all));
    let mut of_node = Registry::with_prefix("mount_s3_csi_node");
    if let Some(is_outdated) = is_outdated {
        let gauge = Family::<Labels, Gauge>::default();
        gauge.get_or_create(&vec![("node", node.to_owned())]).set(is_outdated.into());
        of_node.register(
            "engines_pod_outdated",
            "Whether the node's engines pod is of an earlier chart",
            gauge,
        );
    }
    let mut page = calls.strip_suffix(END).unwrap_or(calls).to_owned();
    // Writing to a `String` does not fail.
    let _ = encode_registry(&mut page, &registry);
    let _ = encode_registry(&mut page, &of_node);
    let _ = encode_eof(&mut page);
    page
}

/// One metric of all volumes that report it; `None` if none does.
fn family<M: Default>(
    node: &str,
    volumes: &[VolumeUsage],
    value: fn(&Usage) -> Option<u64>,
    set: impl Fn(&M, u64),
) -> Option<Family<Labels, M>> {
    let family = Family::<Labels, M>::default();
    let mut told = false;
    for volume in volumes {
        let Some(value) = value(&volume.usage) else { continue };
        set(&family.get_or_create(&labels(node, volume)), value);
        told = true;
    }
    told.then_some(family)
}

fn add<M: EncodeMetric>(registry: &mut Registry, metric: Option<M>, register: impl FnOnce(&mut Registry, M)) {
    if let Some(metric) = metric {
        register(registry, metric);
    }
}

fn labels(node: &str, of: &VolumeUsage) -> Labels {
    let VolumeUsage { volume, claim, claim_namespace, mountpoint_pod, usage: _ } = of;
    [
        ("node", node),
        ("persistentvolume", volume),
        ("persistentvolumeclaim", claim),
        ("claim_namespace", claim_namespace),
        ("mountpoint_pod", mountpoint_pod),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_metrics::CallMetrics;

    fn volume(pod: &str, usage: Usage) -> VolumeUsage {
        VolumeUsage {
            volume: "pv".into(),
            claim: "data".into(),
            claim_namespace: "team".into(),
            mountpoint_pod: pod.into(),
            usage,
        }
    }

    #[test]
    fn a_volume_has_a_line_for_each_number_that_its_engine_tells() {
        let all = Usage {
            memory_bytes: Some(7 << 20),
            memory_limit_bytes: Some(256 << 20),
            cpu_us: Some(1_500_000),
            oom_kills: Some(2),
            kernel_files: Some(3),
        };
        let some = Usage { memory_bytes: Some(5), ..Usage::default() };
        let calls = CallMetrics::of("mount_s3_csi_node").page(None);
        let page = page(&calls, "n", &[volume("mp-1", all), volume("mp-2", some)], Some(true));
        let of = |pod: &str| {
            format!(
                r#"{{node="n",persistentvolume="pv",persistentvolumeclaim="data",claim_namespace="team",mountpoint_pod="{pod}"}}"#
            )
        };
        let (one, two) = (of("mp-1"), of("mp-2"));
        for line in [
            format!("mount_s3_csi_volume_memory_bytes{one} 7340032"),
            format!("mount_s3_csi_volume_memory_bytes{two} 5"),
            format!("mount_s3_csi_volume_memory_limit_bytes{one} 268435456"),
            format!("mount_s3_csi_volume_cpu_seconds_total{one} 1.5"),
            format!("mount_s3_csi_volume_oom_kills_total{one} 2"),
            format!("mount_s3_csi_volume_kernel_read_files{one} 3"),
            r#"mount_s3_csi_node_engines_pod_outdated{node="n"} 1"#.to_owned(),
        ] {
            assert!(page.lines().any(|it| it == line), "no {line} in:\n{page}");
        }
        assert_eq!(page.matches(&two).count(), 1, "{page}");
        assert!(page.starts_with(calls.strip_suffix(END).unwrap()), "{page}");
        assert_eq!((page.matches(END).count(), page.ends_with(END)), (1, true), "{page}");
    }

    #[test]
    fn a_node_without_engines_that_tell_has_the_page_of_its_calls() {
        let calls = CallMetrics::of("mount_s3_csi_node").page(None);
        assert_eq!(page(&calls, "n", &[], None), calls);
        assert_eq!(page(&calls, "n", &[volume("mp-1", Usage::default())], None), calls);
    }
}
