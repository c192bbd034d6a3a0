//! The stages of volumes with `mode full`, as this node sees them. Enters: a request for a mount, a note of one. Leaves: a volume's directory on
//! the node for its Mountpoint Pod, and a count of the files of a stage that the bucket lacks.
//!
//! The engine owns the content, and is not trusted: no link is followed, and only names and sizes are read.
//!
//! Never here: the content of a file; a deletion.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{MountRequest, read_only};
use crate::contract::comm::Comm;
use crate::contract::stage;

/// The directory of a stage with the files that wait to be stored.
const WAITING: &str = "files";
/// The directory of a stage with the files that could not be stored.
const KEPT: &str = "kept";
/// The longest part of a PersistentVolume's name in the name of a directory, which has 255 bytes at most.
const NAME_MAX: usize = 200;
/// The digits of a digest that tell volumes of one name apart.
const DIGITS: usize = 12;
/// A note's word for the stage of a pod.
const OF_POD: &str = "pod";

/// The place of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A volume of the Mountpoint Pod, which goes with it.
    OfPod,
    /// A directory of the node by its name, which outlives pods.
    OfNode(String),
}

impl Stage {
    /// Reads the word of a note.
    pub(super) fn read(word: &str) -> Option<Self> {
        match word {
            "" => None,
            OF_POD => Some(Self::OfPod),
            name => Some(Self::OfNode(name.to_owned())),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfPod => OF_POD,
            Self::OfNode(name) => name,
        })
    }
}

/// The stages of this node.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    /// The directory of the node that holds a directory for each volume; `None`: stages are volumes of pods.
    directory: Option<PathBuf>,
}

/// Files that a stage has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Files of which the bucket lacks a change.
    pub(super) files: u64,
    /// The bytes of those files on the disk.
    pub(super) bytes: u64,
    /// Files that could not be stored.
    pub(super) kept: u64,
}

impl Stages {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    /// The stage of a mount; `None` if it needs none. Volumes of one name that name different buckets have different stages.
    pub(super) fn of(&self, request: &MountRequest) -> Option<Stage> {
        request.has_stage().then(|| match &self.directory {
            None => Stage::OfPod,
            Some(_) => {
                let part = |text: &str, most: usize| text.chars().take(most).collect::<String>();
                let (volume, place) = (part(&request.volume, NAME_MAX), part(&request.place, DIGITS));
                Stage::OfNode(format!("{volume}-{place}"))
            }
        })
    }

    /// The path of a stage on this node.
    pub(super) fn path(&self, stage: &Stage, comm: &Comm) -> Option<PathBuf> {
        match stage {
            // The pod's volumes lie side by side.
            Stage::OfPod => Some(comm.directory().with_file_name(stage::VOLUME).join(stage::IN_VOLUME)),
            Stage::OfNode(name) => Some(self.directory.as_ref()?.join(name)),
        }
    }

    /// The files in a stage. A stage that is not there has none.
    ///
    /// # Errors
    /// The directory can't be read.
    pub(super) fn waiting(&self, stage: &Stage, comm: &Comm) -> io::Result<Waiting> {
        let Some(path) = self.path(stage, comm) else { return Ok(Waiting::default()) };
        let Some(directory) = there(open(rustix::fs::CWD, &path))? else { return Ok(Waiting::default()) };
        let (files, bytes) = count(&directory, WAITING)?;
        // Each kept file has a note beside it. They are only told, and wait for nobody.
        let (kept, _) = count(&directory, KEPT).unwrap_or_default();
        Ok(Waiting { files, bytes, kept: kept.div_ceil(2) })
    }
}

/// Opens a volume's directory on the node for the user of its Mountpoint Pod, and makes it if it is missing. The descriptor leads nowhere else:
/// by `..` of a plain one, a process of the pod would reach the stages of other volumes, which have the same user, and the driver's root.
///
/// # Errors
/// An error of the file system; a link or a file in the directory's place; a kernel older than Linux 5.12.
pub(super) fn open_for(path: &Path, user: Uid, group: Gid) -> io::Result<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => close_parent(path)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = read_only::alone(path)?;
    let owner = Uid::from_raw(rustix::fs::fstat(&directory)?.st_uid);
    // Only an empty one of this driver is given away, from this call or from one that was cut short: another may have an engine.
    if owner != user && owner == rustix::process::geteuid() && is_empty(&directory)? {
        rustix::fs::fchown(&directory, Some(user), Some(group))?;
    } else if owner != user {
        return Err(io::Error::other(format!(
            "it belongs to user {owner}, but the Mountpoint Pod runs as user {user}: give it to that user (chown -R) once no engine has it"
        )));
    }
    rustix::fs::fchmod(&directory, Mode::RWXU)?;
    Ok(directory)
}

/// Closes the directory of all stages to other users with the first one. One with other files is the administrator's, and stays as it is.
fn close_parent(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let parent = open(rustix::fs::CWD, parent)?;
    match has_other(&parent, name_of(path))? {
        true => Ok(()),
        false => Ok(rustix::fs::fchmod(&parent, Mode::RWXU)?),
    }
}

fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    Ok(!has_other(directory, None)?)
}

/// Whether a directory has an entry of another name.
fn has_other(directory: &OwnedFd, than: Option<&[u8]>) -> io::Result<bool> {
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_owned();
        if ![&b"."[..], b".."].contains(&&*name) && Some(&*name) != than {
            return Ok(true);
        }
    }
    Ok(false)
}

fn name_of(path: &Path) -> Option<&[u8]> {
    Some(std::os::unix::ffi::OsStrExt::as_bytes(path.file_name()?))
}

fn open(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The regular files of a directory, and the disk that they take.
fn count(stage: &OwnedFd, name: &str) -> io::Result<(u64, u64)> {
    let Some(directory) = there(open(stage, Path::new(name)))? else { return Ok((0, 0)) };
    let (mut files, mut bytes) = (0, 0);
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        match rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                files += 1;
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                // The disk has only the changed part of a file.
                bytes += size.min(u64::try_from(stat.st_blocks).unwrap_or_default() * 512);
            }
            // Stored meanwhile.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok((files, bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::os::unix::process::CommandExt as _;

    use super::*;
    use crate::mounter::testing::{dirs, isolated, need};

    #[test]
    fn a_note_says_where_a_stage_is() {
        for stage in [Stage::OfPod, Stage::OfNode("pv-1-0123456789ab".into())] {
            assert_eq!(Stage::read(&stage.to_string()), Some(stage));
        }
        assert_eq!(Stage::read(""), None);
    }

    #[test]
    fn files_that_wait_are_counted_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let comm = Comm::at(folder.path().join("comm"));
        let stages = Stages::new(None);
        assert_eq!(stages.waiting(&Stage::OfPod, &comm).unwrap(), Waiting::default());
        let stage = stages.path(&Stage::OfPod, &comm).unwrap();
        assert_eq!(stage, folder.path().join("stage/data"));
        for directory in ["files", "kept"] {
            std::fs::create_dir_all(stage.join(directory)).unwrap();
        }
        assert_eq!(stages.waiting(&Stage::OfPod, &comm).unwrap(), Waiting::default());
        std::fs::write(stage.join("files/1"), "12345").unwrap();
        std::fs::write(stage.join("files/2"), "123").unwrap();
        std::fs::create_dir(stage.join("files/3")).unwrap();
        symlink("1", stage.join("files/4")).unwrap();
        std::fs::write(stage.join("kept/1-a"), "").unwrap();
        std::fs::write(stage.join("kept/1-a.json"), "").unwrap();
        assert_eq!(stages.waiting(&Stage::OfPod, &comm).unwrap(), Waiting { files: 2, bytes: 8, kept: 1 });
        std::fs::remove_dir_all(stage.join("kept")).unwrap();
        symlink("files", stage.join("kept")).unwrap();
        assert_eq!(stages.waiting(&Stage::OfPod, &comm).unwrap(), Waiting { files: 2, bytes: 8, kept: 0 });
        std::fs::rename(stage.join("files"), stage.join("moved")).unwrap();
        symlink("moved", stage.join("files")).unwrap();
        stages.waiting(&Stage::OfPod, &comm).unwrap_err();
    }

    #[test]
    fn a_directory_of_the_node_belongs_to_the_pods_user_and_is_no_link() {
        isolated(|| {
            let ([stages], _folder) = dirs();
            let path = stages.join("pv-1-0");
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            for _ in 0..2 {
                open_for(&path, user, group).unwrap();
                let found = path.metadata().unwrap();
                assert_eq!((found.permissions().mode() & 0o7777, found.uid()), (0o700, user.as_raw()));
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            symlink(&path, stages.join("link")).unwrap();
            open_for(&stages.join("link"), user, group).unwrap_err();
        });
    }

    /// Goal: an engine that is taken over reads no other tenant's files, whose stages have its own user.
    #[test]
    fn a_pod_reaches_nothing_but_its_own_directory_of_the_node() {
        isolated(|| {
            if !need("root", rustix::process::geteuid().is_root()) {
                return;
            }
            let ([stages], folder) = dirs();
            for directory in [folder.path(), &stages] {
                std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            std::fs::write(stages.join("of-the-administrator"), "").unwrap();
            let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
            let open = |name| open_for(&stages.join(name), user, group).unwrap();
            let (ours, _other) = (open("pv-1-0"), open("other"));
            std::fs::write(stages.join("other/secret"), "").unwrap();
            std::os::unix::fs::chown(stages.join("other/secret"), Some(65534), Some(65534)).unwrap();
            assert_eq!(stages.metadata().unwrap().permissions().mode() & 0o777, 0o755, "another's directory");
            let says = |script: &str, directory: &OwnedFd| {
                let mut shell = std::process::Command::new("sh");
                shell.args(["-c", script]).current_dir("/").stdin(directory.try_clone().unwrap());
                let ended = shell.uid(user.as_raw()).gid(group.as_raw()).output().unwrap();
                (ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned())
            };
            let in_place = std::fs::File::open(stages.join("pv-1-0")).unwrap().into();
            let reads = "cat /dev/fd/0/../other/secret";
            assert_eq!(says(reads, &in_place), (true, String::new()), "a plain descriptor leads there");
            let (done, error) = says(reads, &ours);
            assert!(!done && error.contains("No such file"), "{error}");
            assert_eq!(says("echo bytes >/dev/fd/0/file && rm /dev/fd/0/file", &ours), (true, String::new()));
        });
    }

    #[test]
    fn a_directory_of_another_user_or_with_files_is_not_given_away() {
        isolated(|| {
            if !need("root", rustix::process::geteuid().is_root()) {
                return;
            }
            let ([stages], _folder) = dirs();
            let path = stages.join("pv-1-0");
            let open = |user| open_for(&path, Uid::from_raw(user), Gid::from_raw(user)).map(drop);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("file"), "").unwrap();
            open(1000).unwrap_err();
            std::fs::remove_file(path.join("file")).unwrap();
            open(1000).unwrap();
            let error = open(2000).unwrap_err().to_string();
            assert!(
                error.contains("belongs to user 1000, but the Mountpoint Pod runs as user 2000"),
                "{error}"
            );
            assert_eq!(path.metadata().unwrap().uid(), 1000);
        });
    }

    #[test]
    fn the_directory_of_all_stages_is_closed_with_the_first_one() {
        isolated(|| {
            let ([stages], _folder) = dirs();
            std::fs::set_permissions(&stages, std::fs::Permissions::from_mode(0o755)).unwrap();
            open_for(&stages.join("pv-1-0"), rustix::process::geteuid(), rustix::process::getegid()).unwrap();
            assert_eq!(stages.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        });
    }
}
