//! Under way.
fn main() {}
