//! Prints the CRD, the content of the chart's file.

use std::io::Write as _;

fn main() -> anyhow::Result<()> {
    std::io::stdout().write_all(reconciler::crd::yaml()?.as_bytes())?;
    Ok(())
}
