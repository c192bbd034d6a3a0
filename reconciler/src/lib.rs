//! The Pod Reconciler: gives workloads their Mountpoint Pods and takes them away. The unit of every decision is one volume on one
//! node. What was seen (`workload`, `mountpoint_pod`) becomes `facts`; `plan` says what to do; `apply` does it; `controller`
//! turns the wheel while `leader` says that it may.

pub mod apply;
pub mod config;
pub mod controller;
pub mod crd;
pub mod facts;
pub mod leader;
pub mod mountpoint_pod;
pub mod plan;
pub mod pod_spec;
pub mod queue;
pub mod server;
pub mod workload;
