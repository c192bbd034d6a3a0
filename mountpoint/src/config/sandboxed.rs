//! The sandbox of a mount: whether it is wished for, and the folders that it leaves open.

use std::path::{Path, PathBuf};

use crate::cli::{self, SandboxArg};
use crate::sandbox::Folders;

/// A sandbox that is wished for.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// There is no mount if a part of it is missing.
    pub is_required: bool,
    /// The folders of the mount.
    pub folders: Folders,
}

/// The sandbox of a mount that writes to these folders.
pub(super) fn wished(asked: SandboxArg, written: Vec<PathBuf>) -> Option<Sandbox> {
    let is_required = match asked {
        SandboxArg::Off => return None,
        SandboxArg::On => true,
        SandboxArg::Auto if cli::wishes_sandbox() => false,
        SandboxArg::Auto => return None,
    };
    let read = cli::key_files().iter().flat_map(|file| folders_of(file)).collect();
    Some(Sandbox { is_required, folders: Folders { written, read } })
}

/// The folders in which a file is looked for again: another one comes to its name by a rename, or by a link that is replaced, as the kubelet
/// does. A file of the root directory stands for itself.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    let Ok(file) = std::path::absolute(file) else { return Vec::new() };
    let target = std::fs::canonicalize(&file).ok();
    let folder = |file: &Path| match file.parent() {
        Some(parent) if parent.parent().is_some() => parent.to_owned(),
        _ => file.to_owned(),
    };
    std::iter::once(folder(&file)).chain(target.as_deref().map(folder)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_keys_stands_for_its_folder_and_for_that_of_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("target")).unwrap();
        std::fs::create_dir(top.join("keys")).unwrap();
        std::fs::write(top.join("target/file"), "").unwrap();
        std::os::unix::fs::symlink(top.join("target/file"), top.join("keys/link")).unwrap();
        assert_eq!(folders_of(&top.join("keys/link")), [top.join("keys"), top.join("target")]);
        assert_eq!(folders_of(&top.join("keys/missing")), [top.join("keys")], "it may come later");
        assert_eq!(
            folders_of("/keys-of-nobody".as_ref()),
            [PathBuf::from("/keys-of-nobody")],
            "never all files"
        );
    }

    #[test]
    fn a_sandbox_that_is_off_or_that_nobody_wishes_is_none() {
        assert!(wished(SandboxArg::Off, Vec::new()).is_none());
        let on = wished(SandboxArg::On, vec!["/cache".into()]).unwrap();
        assert!(on.is_required);
        assert_eq!(on.folders.written, [PathBuf::from("/cache")]);
    }
}
