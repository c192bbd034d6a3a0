//! Doubles for tests, benches and fuzz targets: a bucket in memory, faults as data, and the exam that every
//! [`ObjectClient`](crate::s3::ObjectClient) passes, this one included.
//!
//! Enters: the settings of a test. Leaves: the answers that S3 would give, or the fault that the test ordered. Nothing here is part of
//! a release build.

pub mod exam;
mod fault;
#[cfg(test)]
mod log;
mod memory;
#[cfg(feature = "shuttle")]
pub mod model;
mod store;

pub use fault::{FaultPlan, Gate, Op};
#[cfg(test)]
pub use log::log_of;
pub use memory::{Call, MemoryClient, Settings};
