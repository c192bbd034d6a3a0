//! The sandbox of a mount: whether the user wants one, and the folders that stay accessible.

use std::path::{Path, PathBuf};

use crate::cli::{self, Args, SandboxArg};
use crate::sandbox::Folders;

/// The sandbox that the user wants.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Whether the mount must fail if a part of the sandbox is not available.
    pub is_required: bool,
    /// The folders that the mount needs.
    pub folders: Folders,
    /// The files from which credentials are read.
    pub keys: Vec<PathBuf>,
    /// The folder whose files the kernel may read directly (passthrough).
    pub cache: Option<PathBuf>,
}

/// The sandbox that the flags ask for; `None` without one. The mount writes to its cache, to `written` and to the folders of its sockets.
pub(super) fn wished(
    args: &Args,
    cache: Option<PathBuf>,
    written: impl IntoIterator<Item = Option<PathBuf>>,
    sockets: Vec<PathBuf>,
) -> Option<Sandbox> {
    let is_required = match args.mount.sandbox {
        SandboxArg::Off => return None,
        SandboxArg::On => true,
        SandboxArg::Auto if cli::wishes_sandbox() => false,
        SandboxArg::Auto => return None,
    };
    let log = args.logging.log_directory.as_ref();
    // A read-only mount writes known attributes, too.
    let state = args.client.state_dir.as_ref().or(args.state_dir_default.as_ref());
    let state = state.filter(|_| args.mount.keep_metadata);
    let absolute = |path: &PathBuf| std::path::absolute(path).ok();
    let named = log.into_iter().chain(state).filter_map(absolute);
    let written =
        cache.iter().cloned().chain(written.into_iter().flatten()).chain(named).chain(sockets).collect();
    let keys = cli::key_files();
    let read = keys.iter().flat_map(|file| folders_of(file)).collect();
    Some(Sandbox { is_required, folders: Folders { written, read }, keys, cache })
}

/// The folders in which the engine opens a file again after it was replaced: by a rename, or by a new target of a symbolic link, as the
/// kubelet does it. A file in the root directory stands for itself, since its folder would be everything.
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
    fn a_sandbox_that_is_off_is_none_and_one_that_is_on_knows_each_folder() {
        let args = |words: &[&str]| {
            let line = ["mount-s3", "bucket", "/mnt", "--log-directory", "/log"].iter().chain(words);
            match cli::asked(line.map(std::ffi::OsString::from)) {
                Ok(cli::Asked::Mount(args)) => *args,
                other => panic!("{other:?}"),
            }
        };
        let wished =
            |words: &[&str]| wished(&args(words), Some("/cache".into()), [None], vec!["/run".into()]);
        assert!(wished(&["--sandbox", "off"]).is_none());
        let on = wished(&["--sandbox", "on"]).unwrap();
        assert!(on.is_required);
        assert_eq!(on.folders.written, ["/cache", "/log", "/run"].map(PathBuf::from));
        let keeps = wished(&["--sandbox", "on", "--keep-metadata", "--state-dir", "/state"]).unwrap();
        assert!(keeps.folders.written.contains(&"/state".into()));
    }
}
