//! Compiles `proto/` without `protoc`, and writes the descriptors beside the code, for the test that compares them.

use std::path::Path;

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["csi.proto"], ["proto"])?;
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().generate_default_stubs(true).compile_fds(descriptors)?;
    Ok(())
}
