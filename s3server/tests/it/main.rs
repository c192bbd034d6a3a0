//! The server as clients meet it: real sockets, real signatures.

mod client;
mod objects;
