//! CPU and memory of a Mountpoint Pod: the volume's values, else the chart's, else a share of the workload's, else the least that an engine
//! needs.

use std::collections::BTreeMap;

use csi::contract::quantity::Quantity as Amount;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Default CPU request of a Mountpoint Pod; an idle engine uses less.
const LEAST_CPU: &str = "10m";
/// Default memory request of a Mountpoint Pod; an engine always makes progress with it.
const LEAST_MEMORY: &str = "128Mi";

/// Smallest memory limit of a share: an engine's smallest target, its memory beside the target, and the mounter's.
const LEAST_LIMIT: Amount = Amount::of(256 << 20);

/// Requests and limits of a Mountpoint Pod, as Kubernetes quantities; `None` for a value that is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The CPU request.
    pub requests_cpu: Option<String>,
    /// The memory request.
    pub requests_memory: Option<String>,
    /// The CPU limit.
    pub limits_cpu: Option<String>,
    /// The memory limit.
    pub limits_memory: Option<String>,
}

impl Resources {
    /// These resources, completed by defaults. A Mountpoint Pod always has requests: when a node runs out of memory, the kernel first kills
    /// pods without them, and their workloads lose the volume.
    pub(super) fn or(&self, defaults: &Self, share: &Self) -> ResourceRequirements {
        let defaults = &defaults.with(share, self);
        let list = |cpu: &Option<String>,
                    cpu_default: &Option<String>,
                    memory: &Option<String>,
                    memory_default: &Option<String>| {
            let named = [
                ("cpu", cpu.as_ref().or(cpu_default.as_ref())),
                ("memory", memory.as_ref().or(memory_default.as_ref())),
            ];
            let list: BTreeMap<String, Quantity> = named
                .into_iter()
                .filter_map(|(name, text)| Some((name.to_owned(), Quantity(text?.clone()))))
                .collect();
            (!list.is_empty()).then_some(list)
        };
        let limits =
            list(&self.limits_cpu, &defaults.limits_cpu, &self.limits_memory, &defaults.limits_memory);
        // Kubernetes sets the request to the limit if only the limit is given.
        let least = |resource: &str, text: &str| {
            let is_limited = limits.as_ref().is_some_and(|limits| limits.contains_key(resource));
            (!is_limited).then(|| text.to_owned())
        };
        let requests = list(
            &self.requests_cpu,
            &defaults.requests_cpu.clone().or_else(|| least("cpu", LEAST_CPU)),
            &self.requests_memory,
            &defaults.requests_memory.clone().or_else(|| least("memory", LEAST_MEMORY)),
        );
        ResourceRequirements { requests, limits, ..ResourceRequirements::default() }
    }

    /// Adds the share of each resource for which neither these values nor the volume's own name a request or limit. A limit from one side
    /// and a request from the other might not fit each other.
    fn with(&self, share: &Self, own: &Self) -> Self {
        let says = |it: [&Option<String>; 4]| it.into_iter().any(Option::is_some);
        let cpu = says([&own.requests_cpu, &own.limits_cpu, &self.requests_cpu, &self.limits_cpu]);
        let memory =
            says([&own.requests_memory, &own.limits_memory, &self.requests_memory, &self.limits_memory]);
        let mut with = self.clone();
        if !cpu {
            with.requests_cpu.clone_from(&share.requests_cpu);
        }
        if !memory {
            with.requests_memory.clone_from(&share.requests_memory);
            with.limits_memory.clone_from(&share.limits_memory);
        }
        with
    }

    /// A share, in per cent, of the requests of a workload's containers, and of its memory limit if every container has one. Never less
    /// than an engine needs. There is no CPU limit, because an engine without CPU time stops all its workloads.
    #[must_use]
    pub fn share_of(workload: &Pod, percent: u32) -> Self {
        let containers = workload.spec.iter().flat_map(|spec| &spec.containers);
        let mut requests = [Amount::default(); 2];
        let mut limit = Some(Amount::default());
        let mut is_empty = true;
        for resources in containers.map(|container| container.resources.clone().unwrap_or_default()) {
            is_empty = false;
            let amount = |list: &Option<BTreeMap<String, Quantity>>, name: &str| {
                list.as_ref().and_then(|list| Amount::parse(&list.get(name)?.0))
            };
            for (sum, name) in requests.iter_mut().zip(["cpu", "memory"]) {
                let asked = amount(&resources.requests, name).or_else(|| amount(&resources.limits, name));
                *sum = sum.plus(asked.unwrap_or_default());
            }
            limit = limit.zip(amount(&resources.limits, "memory")).map(|(sum, more)| sum.plus(more));
        }
        let least = |text: &str| Amount::parse(text).unwrap_or_default();
        let [cpu, memory] = requests.map(|sum| sum.percent(percent));
        let memory = memory.max(least(LEAST_MEMORY));
        let limit = limit.filter(|_| !is_empty).map(|sum| sum.percent(percent).max(LEAST_LIMIT).max(memory));
        Self {
            requests_cpu: Some(cpu.max(least(LEAST_CPU)).as_cpu()),
            requests_memory: Some(memory.as_memory()),
            limits_cpu: None,
            limits_memory: limit.map(Amount::as_memory),
        }
    }
}
