//! `/dev/fuse`: opens and mounts it, reads requests, writes replies.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::helper::helper;
use super::options::MountOptions;
use crate::sync::{Arc, Weak};

/// Name of the file system's source in mount tables.
const SOURCE: &str = "mountpoint-s3";
/// The subtype of the mount, behind the dot of `fuse.`.
const SUBTYPE: &str = "mount-s3";

/// Major and minor number of `/dev/fuse`.
const NUMBERS: (u32, u32) = (10, 229);

/// Whether a descriptor is of the FUSE device, by its numbers. Paths do not help: the path of a device from a container that is gone is not
/// the path in this process. No request goes to a file system.
///
/// # Errors
/// Errors of statx(2).
pub fn is_device(descriptor: impl AsFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(descriptor, c"", flags, StatxFlags::TYPE)?;
    let is_device = FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::CharacterDevice;
    Ok(is_device && (stat.stx_rdev_major, stat.stx_rdev_minor) == NUMBERS)
}

/// The number of a FUSE device's connection, which is the minor number of its mount. `None` if the kernel does not report it, as before
/// Linux 6.17.
///
/// # Errors
/// Errors of reading `/proc/self/fdinfo`.
pub fn connection_of(device: impl AsFd) -> io::Result<Option<u32>> {
    let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd()))?;
    Ok(connection(&facts))
}

fn connection(facts: &str) -> Option<u32> {
    facts.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok())
}

/// A connection to the kernel's FUSE.
#[derive(Debug)]
pub(super) struct FuseDevice(Arc<OwnedFd>);

/// A weak reference to a connection: checks whether the kernel still has the other end, without keeping the connection open.
#[derive(Clone, Debug)]
pub(super) struct Connection(Weak<OwnedFd>);

impl Connection {
    /// Whether the file system of the connection was neither taken down nor aborted.
    pub(super) fn is_there(&self) -> bool {
        let Some(device) = self.0.upgrade() else { return false };
        let mut polled = [PollFd::new(&*device, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
    }
}

impl FuseDevice {
    /// A device that another process opened and mounted.
    pub(super) fn adopt(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// The connection, for checks from other threads.
    pub(super) fn connection(&self) -> Connection {
        Connection(Arc::downgrade(&self.0))
    }

    /// Opens the device and mounts it on `dir`: by mount(2) if this process may, otherwise through `fusermount3`.
    pub(super) fn mount(dir: &Path, options: &MountOptions) -> anyhow::Result<Self> {
        match mount_directly(dir, options) {
            Ok(device) => Ok(device),
            Err(Errno::PERM | Errno::ACCESS) if options.labels.is_empty() => mount_by_helper(dir, options),
            Err(error) if !options.labels.is_empty() => Err(error).with_context(|| {
                let labels = options.labels.join(",");
                format!(
                    "mounting /dev/fuse on {} with {labels}: only root may set labels, and the policy of SELinux must know them",
                    dir.display()
                )
            }),
            Err(error) => Err(error).with_context(|| format!("mounting /dev/fuse on {}", dir.display())),
        }
    }

    /// Waits for the next request; `None` once the file system is unmounted.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&*self.0, &mut *buffer) {
                Ok(n) => return Ok(Some(n)),
                Err(error) => match after_failed_read(error) {
                    AfterFailedRead::Again => {}
                    AfterFailedRead::Unmounted => return Ok(None),
                    AfterFailedRead::Broken => return Err(error.into()),
                },
            }
        }
    }

    /// Makes the kernel drop all pages of a file. May wait for answers to requests of that file.
    pub(super) fn drop_pages(&self, ino: u64) -> io::Result<()> {
        self.invalidate(ino, 0)
    }

    /// Makes the kernel request a file's attributes at their next use. Never waits.
    pub(super) fn drop_attributes(&self, ino: u64) -> io::Result<()> {
        // The offset -1 names no byte: the file's pages stay.
        self.invalidate(ino, -1)
    }

    fn invalidate(&self, ino: u64, offset: i64) -> io::Result<()> {
        /// `FUSE_NOTIFY_INVAL_INODE`, where a reply has its negative errno.
        const INVAL_INODE: i32 = 2;
        // struct fuse_notify_inval_inode_out: inode, offset, length; 0 is up to the end.
        let (ino, offset, length) = (ino.to_ne_bytes(), offset.to_ne_bytes(), [0; 8]);
        self.reply(0, -INVAL_INODE, [&ino[..], &offset, &length])
    }

    /// Makes the kernel repeat every request that was taken and not answered.
    pub(super) fn resend(&self) -> io::Result<()> {
        /// `FUSE_NOTIFY_RESEND`, where a reply has its negative errno.
        const RESEND: i32 = 7;
        self.reply(0, -RESEND, [])
    }

    /// Whether a request arrives within this time.
    pub(super) fn comes_within(&self, limit: Duration) -> bool {
        let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        let mut polled = [PollFd::new(&*self.0, PollFlags::IN)];
        poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
    }

    /// Writes one reply: a header and the slices, in one call as the kernel demands. `errno` 0 is success. A reply to a request that the
    /// kernel has given up is not an error.
    pub(super) fn reply<'a>(
        &self,
        unique: u64,
        errno: i32,
        slices: impl IntoIterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        const INLINE: usize = 4;
        let mut list: [IoSlice<'_>; INLINE] = std::array::from_fn(|_| IoSlice::new(&[]));
        let mut header = [0u8; 16];
        let mut more = Vec::new();
        let (mut count, mut len) = (1, header.len());
        for slice in slices {
            len += slice.len();
            match list.get_mut(count) {
                Some(place) => *place = IoSlice::new(slice),
                None => more.push(IoSlice::new(slice)),
            }
            count += 1;
        }
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        list[0] = IoSlice::new(&header);
        let written = if more.is_empty() {
            rustix::io::writev(&*self.0, &list[..count])
        } else {
            let all: Vec<_> = list.into_iter().chain(more).collect();
            rustix::io::writev(&*self.0, &all)
        };
        match written {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The meaning of a failed read of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterFailedRead {
    Again,
    Unmounted,
    Broken,
}

pub(super) fn after_failed_read(error: Errno) -> AfterFailedRead {
    match error {
        // NOENT: the request was interrupted before we took it.
        Errno::INTR | Errno::AGAIN | Errno::NOENT => AfterFailedRead::Again,
        // CONNABORTED: the unmount came while the engine took a request, usually the release of the last file.
        Errno::NODEV | Errno::CONNABORTED => AfterFailedRead::Unmounted,
        _ => AfterFailedRead::Broken,
    }
}

/// The options for mount(2). `fd`, `rootmode`, `user_id` and `group_id` are required by the kernel.
fn data(fd: i32, options: &MountOptions) -> String {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions");
    if options.allow_other || options.allow_root {
        data.push_str(",allow_other");
    }
    for label in &options.labels {
        data.push(',');
        data.push_str(label);
    }
    data
}

fn mount_directly(dir: &Path, options: &MountOptions) -> Result<FuseDevice, Errno> {
    use rustix::fs::{Mode, OFlags, open};
    let fd = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    let data = std::ffi::CString::new(data(fd.as_raw_fd(), options)).map_err(|_| Errno::INVAL)?;
    mount(SOURCE, dir, format!("fuse.{SUBTYPE}"), flags, data.as_c_str())?;
    Ok(FuseDevice::adopt(fd))
}

/// Mounts through `fusermount3`, which has the privilege that this process lacks: it opens and mounts the device, and sends it over a
/// socket.
fn mount_by_helper(dir: &Path, options: &MountOptions) -> anyhow::Result<FuseDevice> {
    let (ours, theirs) = UnixStream::pair().context("a socket for fusermount3")?;
    // Only the helper inherits this end: we start no other process before we close it again.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut words = format!("nosuid,nodev,noatime,default_permissions,fsname={SOURCE},subtype={SUBTYPE}");
    words.push_str(if options.read_only { ",ro" } else { ",rw" });
    if options.allow_other || options.allow_root {
        words.push_str(",allow_other");
    }
    if options.no_exec {
        words.push_str(",noexec");
    }
    let mut helper = helper("fusermount3")
        .args(["-o", &words, "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting fusermount3: install the package fuse3, or mount as root")?;
    drop(theirs);
    match receive_device(&ours) {
        Ok(Some(fd)) => {
            let _ = helper.wait();
            Ok(FuseDevice::adopt(fd))
        }
        other => {
            let said =
                helper.wait_with_output().map(|o| String::from_utf8_lossy(&o.stderr).trim().to_owned());
            bail!(
                "fusermount3 did not mount {}: {}",
                dir.display(),
                match (said, other) {
                    (Ok(said), _) if !said.is_empty() => said,
                    (_, Err(error)) => error.to_string(),
                    _ => "it gave no reason".to_owned(),
                }
            )
        }
    }
}

fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut iov = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket.as_fd(), &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_fuse_device_is_known_by_its_numbers_whatever_its_path() {
        let file = |path: &Path| std::fs::File::open(path).unwrap();
        assert!(!is_device(file(Path::new("/dev/null"))).unwrap());
        assert!(!is_device(file(Path::new("/"))).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("node");
        let numbers = rustix::fs::makedev(NUMBERS.0, NUMBERS.1);
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &node,
            FileType::CharacterDevice,
            rustix::fs::Mode::RWXU,
            numbers,
        );
        let device = made.ok().and_then(|()| std::fs::File::open(&node).ok());
        if !testkit::need("root, to make a device", device.is_some()) {
            return;
        }
        // The device of a container that is gone has no path, either.
        std::fs::remove_file(&node).unwrap();
        assert!(is_device(device.unwrap()).unwrap());
    }

    #[test]
    fn the_connection_of_a_device_is_read_from_its_facts() {
        assert_eq!(connection("pos:\t0\nflags:\t02100002\nfuse_connection:\t39\n"), Some(39));
        assert_eq!(connection("pos:\t0\n"), None);
    }

    #[test]
    fn labels_of_selinux_are_the_last_words_for_mount_2() {
        let label = r#"context="system_u:object_r:svirt_t:s0:c1,c2""#;
        let options = MountOptions { labels: vec![label.to_owned()], ..MountOptions::default() };
        assert!(data(3, &options).ends_with(&format!("default_permissions,{label}")));
    }

    #[test]
    fn a_mount_that_goes_while_a_request_is_taken_is_unmounted_and_not_broken() {
        for (error, means) in [
            (Errno::CONNABORTED, AfterFailedRead::Unmounted),
            (Errno::NODEV, AfterFailedRead::Unmounted),
            (Errno::NOENT, AfterFailedRead::Again),
            (Errno::IO, AfterFailedRead::Broken),
        ] {
            assert_eq!(after_failed_read(error), means, "{error:?}");
        }
    }

    #[test]
    fn a_reply_of_any_number_of_slices_is_one_write_of_header_and_slices() {
        // A datagram is what one write(2) wrote, as the device sees it.
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        let device = FuseDevice::adopt(ours.into());
        let slices: Vec<Vec<u8>> = (0..20u8).map(|i| vec![i; 1000 + usize::from(i)]).collect();
        let mut received = vec![0; 64 << 10];
        for count in 0..=slices.len() {
            let sent = &slices[..count];
            device.reply(42, 0, sent.iter().map(Vec::as_slice)).unwrap();
            let n = kernel.recv(&mut received).unwrap();
            let (header, body) = received[..n].split_at(16);
            assert_eq!(header[..4], (n as u32).to_ne_bytes());
            assert_eq!((&header[4..8], &header[8..]), (&[0; 4][..], &42u64.to_ne_bytes()[..]));
            assert_eq!(body, sent.concat(), "{count} slices");
        }
        device.drop_pages(7).unwrap();
        assert_eq!(kernel.recv(&mut received).unwrap(), 40);
        assert_eq!(received[4..16], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "a notification has no request");
        assert_eq!((&received[16..24], &received[24..40]), (&7u64.to_ne_bytes()[..], &[0; 16][..]));
        device.resend().unwrap();
        assert_eq!(kernel.recv(&mut received).unwrap(), 16);
        assert_eq!(received[..16], [16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        device.reply(43, Errno::INTR.raw_os_error(), []).unwrap();
        assert_eq!(kernel.recv(&mut received).unwrap(), 16);
        assert_eq!(received[4..8], (-Errno::INTR.raw_os_error()).to_ne_bytes());
    }
}
