//! Finds mounts: by their files in the folders of sockets, and in the kernel's table of mounts.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use mountpoint::telemetry::{self, Entry, SocketFolder};

use super::table::{self, Mounted};

/// The facts about a mount that need no request to it.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// The entry that the mount itself wrote, if it was found.
    pub(super) entry: Option<Entry>,
    /// The mount in the kernel's table, if it was found.
    pub(super) mounted: Option<Mounted>,
}

impl Found {
    pub(super) fn mount_point(&self) -> PathBuf {
        match (&self.mounted, &self.entry) {
            (Some(mounted), _) => mounted.point.clone(),
            (None, Some(entry)) => PathBuf::from(&entry.origin.mount_point),
            (None, None) => PathBuf::new(),
        }
    }
}

/// All folders that may contain sockets for this user. `of_users`: the directory that has a runtime directory for each user.
pub(super) fn places(runtime_dir: Option<&Path>, of_users: &Path) -> Vec<SocketFolder> {
    let mut places = telemetry::places(runtime_dir);
    for user in std::fs::read_dir(of_users).into_iter().flatten().flatten() {
        let Some(owner) = user.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // The folder may also belong to root, after a mount with `sudo -E`.
        places.extend([owner, 0].map(|owner| SocketFolder::below(&user.path(), Some(owner))));
    }
    places.sort();
    // One of two equal folders is left: the one without an owner comes first and stays, because it is less strict.
    places.dedup_by(|again, first| again.folder == first.folder && first.owner.is_none());
    places.dedup();
    places
}

/// Every mount of this user, or of all users for root. Removes the files of dead processes that have no mount any more.
pub(super) fn all(places: &[SocketFolder]) -> anyhow::Result<Vec<Found>> {
    let me = rustix::process::geteuid().as_raw();
    let entries: Vec<Entry> = places.iter().flat_map(telemetry::read_entries).collect();
    let mut table = table::read()?;
    let mut found = Vec::new();
    for entry in entries {
        let at = table.iter().rposition(|mounted| tells_of(&entry, mounted));
        let mounted = at.map(|at| table.remove(at));
        if mounted.is_none() && entry.is_gone() {
            entry.remove();
            continue;
        }
        found.push(Found { entry: Some(entry), mounted });
    }
    let rest = table.into_iter().filter(|mounted| me == 0 || mounted.uid == me);
    found.extend(rest.map(|mounted| Found { entry: None, mounted: Some(mounted) }));
    found.sort_by_key(Found::mount_point);
    Ok(found)
}

/// Whether the entry describes this mount: the same user and mount point. An entry about another user's mount does not count.
fn tells_of(entry: &Entry, mounted: &Mounted) -> bool {
    mounted.uid == entry.origin.uid && mounted.point == Path::new(&entry.origin.mount_point)
}

/// The mount that contains this path, of any user.
///
/// # Errors
/// No mount of mount-s3 contains the path.
pub(super) fn at(places: &[SocketFolder], dir: &Path) -> anyhow::Result<Found> {
    let table = table::read()?;
    let entries: Vec<Entry> = places.iter().flat_map(telemetry::read_entries).collect();
    for path in spellings(dir)? {
        let mounted = table::holding(&table, &path).cloned();
        let is_of_it = |entry: &&Entry| match &mounted {
            Some(mounted) => tells_of(entry, mounted),
            None => Path::new(&entry.origin.mount_point) == path,
        };
        let mut of_it: Vec<&Entry> = entries.iter().filter(is_of_it).collect();
        // The mount point may also have the file of a dead process, whose mount this one replaced.
        of_it.sort_by_key(|entry| entry.is_gone());
        let entry = of_it.first().copied().cloned();
        if mounted.is_some() || entry.is_some() {
            return Ok(Found { entry, mounted });
        }
    }
    anyhow::bail!(
        "{} is in no mount of mount-s3: 'mount-s3-ctl status' lists yours, 'findmnt -t fuse.mount-s3' those of all users",
        dir.display()
    )
}

/// The path relative to the mount point of its mount.
///
/// # Errors
/// The path is not below this mount point.
pub(super) fn below(found: &Found, dir: &Path) -> anyhow::Result<PathBuf> {
    let point = found.mount_point();
    let below = |path: PathBuf| path.strip_prefix(&point).ok().map(Path::to_owned);
    spellings(dir)?
        .into_iter()
        .find_map(below)
        .with_context(|| format!("{} is not below {}", dir.display(), point.display()))
}

/// The absolute path, as written and with the symbolic links before its last name resolved. The last name itself is not read, because its
/// mount may hang.
fn spellings(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let absolute = std::path::absolute(dir).with_context(|| format!("{}", dir.display()))?;
    let mut path = PathBuf::new();
    for part in absolute.components() {
        match part {
            std::path::Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    let mut spellings = vec![path.clone()];
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(parent) = std::fs::canonicalize(parent)
    {
        spellings.push(parent.join(name));
    }
    Ok(spellings)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{CWD, Mode, mkfifoat};
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

    use super::super::ask::Seen;
    use super::super::show;
    use super::*;
    use mountpoint::telemetry::Origin;

    /// The file that a mount of this user writes.
    fn origin(uid: u32, mount_point: &str) -> Vec<u8> {
        let mount_point = mount_point.to_owned();
        serde_json::to_vec(&Origin { uid, mount_point, pid: 7, ..Origin::default() }).unwrap()
    }

    /// A socket with a full queue, so that a waiting connect(2) waits for ever.
    fn crowded(path: &Path) -> impl Sized + use<> {
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let listener = listener.unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        (listener, UnixStream::connect(path).unwrap())
    }

    /// A socket that nothing listens on.
    fn dead(path: &Path) {
        let ended = UnixListener::bind(path).unwrap();
        // Shut down explicitly: the child of another test inherits the socket until it calls exec.
        rustix::net::shutdown(&ended, rustix::net::Shutdown::Both).unwrap();
    }

    #[test]
    fn a_users_folder_can_not_make_roots_ctl_wait_delete_or_print_controls() {
        let me = rustix::process::geteuid().as_raw();
        // Nobody but root can make another user's folder; without root, this user's folder is used.
        let [user, other] = if me == 0 { [4321, 4322] } else { [me, me + 1] };
        let (run, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = run.path().join(user.to_string()).join("mount-s3");
        std::fs::create_dir_all(&folder).unwrap();
        mkfifoat(CWD, folder.join("fifo.json"), Mode::RUSR | Mode::WUSR).unwrap();
        std::fs::write(folder.join("1.json"), origin(user, "/mnt/\u{1b}[2J")).unwrap();
        let _crowded = crowded(&folder.join("1.sock"));
        std::fs::write(folder.join("liar.json"), origin(other, "/mnt/liar")).unwrap();
        let mut long = origin(user, "/mnt/long");
        long.extend([b' '; 64 << 10]);
        std::fs::write(folder.join("long.json"), long).unwrap();
        dead(&folder.join("long.sock"));
        std::fs::write(victim.path().join("linked"), origin(user, "/mnt/linked")).unwrap();
        symlink(victim.path().join("linked"), folder.join("linked.json")).unwrap();
        std::fs::write(folder.join("2.json"), origin(user, "/mnt/dead")).unwrap();
        dead(&folder.join("2.sock"));
        std::fs::write(folder.join("stranger.json"), origin(user, "/mnt/stranger")).unwrap();
        if me == 0 {
            for file in std::fs::read_dir(&folder).unwrap() {
                std::os::unix::fs::lchown(file.unwrap().path(), Some(user), Some(user)).unwrap();
            }
            chown(folder.join("stranger.json"), Some(other), Some(other)).unwrap();
            chown(&folder, Some(user), Some(user)).unwrap();
        } else {
            std::fs::remove_file(folder.join("stranger.json")).unwrap();
        }
        // A folder of some service of root's, and one of a user that leads there.
        std::fs::write(victim.path().join("daemon.json"), origin(other, "/mnt/victim")).unwrap();
        dead(&victim.path().join("daemon.sock"));
        std::fs::create_dir(run.path().join(other.to_string())).unwrap();
        symlink(victim.path(), run.path().join(other.to_string()).join("mount-s3")).unwrap();
        // A folder that everybody may write to.
        let open = run.path().join("9").join("mount-s3");
        std::fs::create_dir_all(&open).unwrap();
        std::fs::write(open.join("1.json"), origin(9, "/mnt/open")).unwrap();
        if me == 0 {
            chown(open.join("1.json"), Some(9), Some(9)).unwrap();
            chown(&open, Some(9), Some(9)).unwrap();
        }
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();

        let (done, found) = mpsc::channel();
        let of_users = run.path().to_owned();
        std::thread::spawn(move || {
            let mut places = places(None, &of_users);
            places.retain(|place| place.folder.starts_with(&of_users));
            done.send(all(&places).unwrap())
        });
        // An idle machine needs a millisecond.
        let found = found.recv_timeout(Duration::from_secs(20)).expect("it waits for what a user put there");
        let origins: Vec<Origin> = found.into_iter().filter_map(|it| Some(it.entry?.origin)).collect();
        let points: Vec<&str> = origins.iter().map(|it| it.mount_point.as_str()).collect();
        assert_eq!(points, ["/mnt/\u{1b}[2J"]);
        let text = show::seen(&Seen::Hangs(Box::new(origins[0].clone())));
        assert!(!text.contains('\x1b'), "{text:?}");
        for kept in ["daemon.json", "daemon.sock", "linked"] {
            assert!(victim.path().join(kept).exists(), "{kept} is gone");
        }
        for kept in ["fifo.json", "1.json", "1.sock", "long.json", "long.sock", "liar.json"] {
            assert!(folder.join(kept).exists(), "{kept} is gone");
        }
        assert!(!folder.join("2.json").exists() && !folder.join("2.sock").exists(), "a dead mount's stay");
    }

    #[test]
    fn a_user_who_names_another_s_mount_has_no_say_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let me = rustix::process::geteuid().as_raw();
        std::fs::write(folder.path().join("1.json"), origin(me, "/mnt")).unwrap();
        let place = SocketFolder { folder: folder.path().to_owned(), owner: Some(me) };
        let entry = telemetry::read_entries(&place).remove(0);
        let mounted = |point: &str, uid| Mounted { point: point.into(), uid };
        assert!(tells_of(&entry, &mounted("/mnt", me)));
        assert!(!tells_of(&entry, &mounted("/mnt", me + 1)) && !tells_of(&entry, &mounted("/m", me)));
    }
}
