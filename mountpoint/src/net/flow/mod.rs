//! Flow control: lanes of connections, their number, the share of each transfer, and the time limits of each exchange.

pub(crate) mod lanes;
pub(crate) mod share;
pub(crate) mod watch;
pub(in crate::net) mod width;
