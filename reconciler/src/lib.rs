//! The Pod Reconciler: creates Mountpoint Pods for workloads and removes them. The unit of every decision is one volume on one node.
//! `observed` and `mountpoint_pod` turn observations into `facts`; `plan` decides; `apply` acts; `main_loop` runs while
//! `leader` permits it.

pub mod apply;
pub mod config;
pub mod crd;
pub mod facts;
pub mod handles;
pub mod headroom;
pub mod leader;
pub mod main_loop;
pub mod metrics;
pub mod mountpoint_pod;
pub mod observed;
mod outdated;
pub mod plan;
pub mod pod_spec;
pub mod prune;
pub mod queue;
pub mod replacements;
pub mod server;
mod twins;
pub mod uninstall;
pub mod upgrade;
