//! The protocols that `build.rs` compiles from `proto/`. Enters: nothing. Leaves: messages, servers, clients.
//!
//! Never here: hand-written code. A service implements only the calls that it answers; the others are UNIMPLEMENTED.

#![allow(
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its comments stand in proto/, and what of the lints it meets changes with the generator"
)]

// The generated code uses this library; it is named here for the check for unused libraries.
use tonic_prost as _;

/// The Container Storage Interface.
pub mod csi {
    tonic::include_proto!("csi.v1");
}
