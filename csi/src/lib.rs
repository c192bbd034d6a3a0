//! The CSI driver `s3.csi.scality.com`.
//!
//! The path of a volume: the kubelet calls `node/`, which asks `mounter/` for a mount. `mounter/` waits until the reconciler has assigned a
//! Mountpoint Pod, mounts a FUSE device on the host, sends it to the mounter in that pod with one message, and bind-mounts the source at
//! the kubelet's target path. `contract/` contains the agreement between the processes, and `holder/` keeps mounts whose containers end. In
//! another process, `controller/` creates and deletes volumes.

pub mod call_metrics;
pub mod command_line;
pub mod config;
pub mod contract;
pub mod controller;
pub mod error;
pub mod events;
pub mod holder;
pub mod identity;
pub mod install;
pub mod mounter;
pub mod mountpoint_pod;
pub mod node;
pub mod proto;
pub mod server;
pub mod taint;
pub mod watch;
