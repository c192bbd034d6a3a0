//! Prints the CRD. The chart's file is its output.

use std::io::Write as _;

fn main() -> anyhow::Result<()> {
    std::io::stdout().write_all(reconciler::crd::yaml()?.as_bytes())?;
    Ok(())
}
