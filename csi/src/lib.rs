//! The CSI driver `s3.csi.scality.com`.
//!
//! A volume's way: the kubelet calls `node/`, which asks `mounter/` for a mount; that waits until the reconciler has assigned a
//! Mountpoint Pod, mounts a FUSE device on the host, hands it to the mounter in that pod with one message, and binds the result where
//! the kubelet wants it. What two processes must agree on is in `contract/`.

pub mod config;
pub mod contract;
pub mod error;
pub mod events;
pub mod identity;
pub mod mounter;
pub mod mountpoint_pod;
pub mod node;
pub mod proto;
pub mod server;
