//! How much may flow at once: lanes of connections, their number, the share of each transfer, and the clocks that watch them.

pub(crate) mod lanes;
pub(crate) mod share;
pub(crate) mod watch;
pub(in crate::net) mod width;
