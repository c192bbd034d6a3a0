//! The server as clients see it: real sockets, real signatures.

mod binary;
mod buckets;
mod checksums;
mod client;
mod conditions;
mod faults;
mod folder;
mod keys;
mod multipart;
mod objects;
mod strict;
