//! The path at which a caller of the driver wants a volume: one beneath the kubelet's directory, or an error.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;

// The files alone: the rest of their crate speaks to Kubernetes, and would be built with the sanitizer.
#[path = "../../csi/src/node/target.rs"]
mod target;

#[expect(dead_code, reason = "the mounters use the rest")]
#[path = "../../csi/src/contract"]
mod contract {
    pub mod target;
}

/// The part of the crate's errors that the file needs.
mod error {
    pub type Result<T> = std::result::Result<T, Error>;

    #[derive(Debug)]
    pub struct Error(pub String);

    impl Error {
        pub fn invalid(message: impl std::fmt::Display) -> Self {
            Self(message.to_string())
        }
    }
}

use contract::target::OfPod;
use target::Target;

const KUBELET: &str = "/var/lib/kubelet";

fuzz_target!(|input: (bool, String)| {
    let (is_below, text) = input;
    let path = if is_below { format!("{KUBELET}/{text}") } else { text };
    let target = match Target::parse("target_path", &path, Path::new(KUBELET)) {
        Ok(target) => target,
        Err(error::Error(why)) => return assert!(why.contains("target_path"), "{why}"),
    };
    let kubelet = Path::new(KUBELET);
    assert!(target.path.starts_with(kubelet) && target.path != kubelet, "{path:?} leads to {target:?}");
    let plain = |component| matches!(component, Component::RootDir | Component::Normal(_));
    assert!(target.path.components().all(plain) && !path.contains('\0'), "{target:?}");
    assert!(!target.workload_uid(None).is_empty() && !target.volume("handle").is_empty());
    assert_eq!(OfPod::of_mount_point(&target.path, kubelet), target.of_pod, "as the mount table shows it");
    let again = Target::parse("target_path", target.path.to_str().expect("it came as text"), kubelet);
    assert_eq!(again.expect("its own path"), target);
});
