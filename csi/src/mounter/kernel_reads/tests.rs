//! Requests of engines, sound ones and those of an intruder, over real sockets with real FUSE devices. Nobody serves the mounts: registering a file
//! needs no answer of theirs.

mod among;

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use mountpoint::telemetry::engine_lines::{Heard, Hello, LINE_MAX};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::*;
use crate::contract::cache;
use crate::contract::comm::Comm;
use crate::mounter::engines::{Engines, Peer};
use crate::mounter::mountinfo::Mounts;
use crate::mounter::peer::Processes;
use crate::mounter::sys;
use crate::mounter::testing::{LINGERS, dirs, fuse, isolated, let_go, lingering, need, processes, runtime};

const UID: &str = "pod-uid";

/// A pod with a cache volume in memory, a mount of its own, and an engine that the driver has dialled.
struct Home {
    comm: Comm,
    cache: PathBuf,
    device: OwnedFd,
    minor: u32,
    processes: Processes,
    engines: Engines,
    listener: tokio::net::UnixListener,
    folder: tempfile::TempDir,
}

/// The engine's end of a connection.
struct Engine(BufReader<UnixStream>);

fn minor_at(point: &Path) -> u32 {
    Mounts::read().unwrap().at(point).unwrap().minor().unwrap()
}

/// A mount that nobody serves, and its device.
fn unserved(point: &Path) -> Option<OwnedFd> {
    let device = fuse()?;
    sys::mount_fuse(device.as_fd(), point, false).unwrap();
    Some(device)
}

/// Answers INIT as an engine does that offers passthrough, and no other request.
fn greet(device: &OwnedFd) {
    let mut request = vec![0; 1 << 17];
    let got = rustix::io::read(device, &mut request).unwrap();
    assert!(got >= 40 && request[4] == 26, "INIT");
    let mut reply = vec![0_u8; 16 + 64];
    reply[..4].copy_from_slice(&80_u32.to_ne_bytes());
    reply[8..16].copy_from_slice(&request[8..16]);
    let out = &mut reply[16..];
    let flags = 1_u64 << 37 | 1 << 30;
    for (at, field) in [
        (0, 7_u32),
        (4, 42),
        (8, 1 << 17),
        (12, flags as u32),
        (20, 1 << 17),
        (24, 1),
        (32, (flags >> 32) as u32),
        (36, 1),
    ] {
        out[at..at + 4].copy_from_slice(&field.to_ne_bytes());
    }
    assert_eq!(rustix::io::write(device, &reply).unwrap(), reply.len());
}

impl Home {
    fn new() -> Option<Self> {
        if !need("Linux 6.9", has_passthrough()) {
            return None;
        }
        let ([kubelet, proc, source], folder) = dirs();
        let comm = Comm::on_host(&kubelet, UID);
        std::fs::create_dir_all(comm.directory()).unwrap();
        let cache = comm.directory().with_file_name(cache::VOLUME);
        std::fs::create_dir(&cache).unwrap();
        rustix::mount::mount("tmpfs", &cache, "tmpfs", rustix::mount::MountFlags::NODEV, None).unwrap();
        let device = unserved(&source)?;
        greet(&device);
        let listener = UnixListener::bind(comm.engine_socket()).unwrap();
        listener.set_nonblocking(true).unwrap();
        Some(Self {
            cache,
            device,
            minor: minor_at(&source),
            processes: processes(&proc, &[UID]),
            engines: Engines::default(),
            listener: tokio::net::UnixListener::from_std(listener).unwrap(),
            comm,
            folder,
        })
    }

    /// An engine that has `ids` numbers already, dialled by the driver.
    async fn dialled(&self, ids: u32) -> Engine {
        self.dialled_by(true, ids).await
    }

    /// An engine that has `ids` numbers already, dialled by a driver that registers more, or none.
    async fn dialled_by(&self, opens: bool, ids: u32) -> Engine {
        self.dialled_with(None, opens, ids).await
    }

    /// An engine with this cache, or with the volume of its pod.
    async fn dialled_with(&self, cache: Option<&Path>, opens: bool, ids: u32) -> Engine {
        let source = Some(self.minor);
        let (comm, processes) = (&self.comm, &self.processes);
        let peer = Peer { slot: UID, uid: UID, cache, comm, processes, source, opens };
        let engine = async {
            let (stream, _) = self.listener.accept().await.unwrap();
            let mut engine = Engine(BufReader::new(stream));
            engine
                .say(&serde_json::to_string(&Hello { version: 1, registers: false, ids: Some(ids) }).unwrap())
                .await;
            let hello: Hello = serde_json::from_str(&engine.line().await).unwrap();
            assert!(hello.registers);
            engine
        };
        tokio::join!(self.engines.dial(&peer), engine).1
    }

    fn put(&self, name: &str) -> (u64, u64) {
        let path = self.cache.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "bytes").unwrap();
        let about = std::fs::metadata(path).unwrap();
        (about.dev(), about.ino())
    }

    fn open(name: &str, (dev, ino): (u64, u64)) -> Request {
        let (name, request) = (Some(name.to_owned()), OPEN.to_owned());
        Request { number: 1, request, name, dev: Some(dev), ino: Some(ino), ..Request::default() }
    }

    fn close(id: u32) -> Request {
        Request { number: 2, request: CLOSE.to_owned(), id: Some(id), ..Request::default() }
    }

    /// A request with the right device.
    async fn ask(&self, engine: &mut Engine, request: &Request) -> Result<u32, String> {
        engine.ask(request, &[self.device.as_fd()]).await
    }

    /// Opens a file and closes it again: the driver serves on.
    async fn serves(&self, engine: &mut Engine) {
        let file = self.put("v2/00/sound");
        let before = self.engines.counts().of(self.minor);
        let id = self.ask(engine, &Self::open("v2/00/sound", file)).await.unwrap();
        assert_eq!(self.engines.counts().of(self.minor), before + 1);
        assert_eq!(self.ask(engine, &Self::close(id)).await, Ok(id));
        assert_eq!(self.engines.counts().of(self.minor), before);
        self.keeps_no_device();
    }

    /// A process that holds a device keeps the readers of a dead engine waiting.
    fn keeps_no_device(&self) {
        let facts = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let facts = facts.filter_map(|it| std::fs::read_to_string(it.ok()?.path()).ok());
        let ours = format!("fuse_connection:\t{}", self.minor);
        assert_eq!(facts.filter(|it| it.lines().any(|line| line == ours)).count(), 1, "the engine's own");
    }
}

fn has_passthrough() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9)
}

impl Engine {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        match self.0.read_line(&mut line).await {
            // It did not read all that was sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => String::new(),
            read => read.map(|_| line).unwrap(),
        }
    }

    async fn say(&mut self, line: &str) {
        self.0.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    fn hand(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)));
        let to = self.0.get_ref();
        match sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            // The driver has hung up already.
            Err(rustix::io::Errno::PIPE) => {}
            sent => assert_eq!(sent.unwrap(), bytes.len()),
        }
    }

    async fn answer(&mut self) -> Answer {
        match Heard::read(self.line().await.as_bytes()) {
            Ok(Heard::Answer(answer)) => answer,
            other => panic!("{other:?}"),
        }
    }

    async fn ask(&mut self, request: &Request, files: &[BorrowedFd<'_>]) -> Result<u32, String> {
        let answer = self.answer_to(request, files).await;
        answer.id.ok_or_else(|| answer.error.unwrap())
    }

    async fn answer_to(&mut self, request: &Request, files: &[BorrowedFd<'_>]) -> Answer {
        let line = serde_json::to_string(request).unwrap() + "\n";
        self.hand(line.as_bytes(), files);
        let answer = self.answer().await;
        assert_eq!(answer.number, Some(request.number), "{answer:?}");
        answer
    }
}

fn at_home<F: AsyncFn(&Home)>(test: F) {
    runtime().block_on(async {
        if let Some(home) = Home::new() {
            test(&home).await;
        }
    });
}

#[test]
fn a_file_of_the_pods_cache_gets_a_number_and_no_device_is_kept() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            home.serves(&mut engine).await;
            let file = home.put("deep/er/file");
            let ids = [
                home.ask(&mut engine, &Home::open("deep/er/file", file)).await.unwrap(),
                home.ask(&mut engine, &Home::open("deep/er/file", file)).await.unwrap(),
            ];
            assert_ne!(ids[0], ids[1]);
            assert_eq!(home.engines.counts().of(home.minor), 2);
        });
    });
}

#[test]
fn a_name_that_is_no_file_of_the_pods_cache_is_refused() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            let sound = home.put("sound");
            let secret = home.folder.path().join("secret");
            std::fs::write(&secret, "x").unwrap();
            let about = std::fs::metadata(&secret).unwrap();
            let secret_is = (about.dev(), about.ino());
            std::os::unix::fs::symlink(&secret, home.cache.join("link")).unwrap();
            std::os::unix::fs::symlink("sound", home.cache.join("inner-link")).unwrap();
            std::os::unix::fs::symlink(home.folder.path(), home.cache.join("link-to-folder")).unwrap();
            std::fs::create_dir(home.cache.join("folder")).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                home.cache.join("fifo"),
                FileType::Fifo,
                rustix::fs::Mode::RWXU,
                0,
            )
            .unwrap();
            let mounted = home.cache.join("mounted");
            std::fs::create_dir(&mounted).unwrap();
            rustix::mount::mount("tmpfs", &mounted, "tmpfs", rustix::mount::MountFlags::empty(), None)
                .unwrap();
            let in_mount = home.put("mounted/file");
            let of = |name: &str| {
                let about = std::fs::symlink_metadata(home.cache.join(name)).unwrap();
                (about.dev(), about.ino())
            };
            let up = "../".repeat(12) + secret.strip_prefix("/").unwrap().to_str().unwrap();
            for (name, file) in [
                ("../comm/engine.sock", sound),
                ("folder/../../secret", secret_is),
                (up.as_str(), secret_is),
                (secret.to_str().unwrap(), secret_is),
                ("link", secret_is),
                ("link", of("link")),
                ("inner-link", sound),
                ("link-to-folder/secret", secret_is),
                ("folder", of("folder")),
                (".", of(".")),
                ("", sound),
                ("fifo", of("fifo")),
                ("mounted/file", in_mount),
                ("none", sound),
                ("sound", (sound.0, sound.1 + 1)),
                ("sound", (sound.0 + 1, sound.1)),
                ("so\0und", sound),
            ] {
                let refused = home.ask(&mut engine, &Home::open(name, file)).await;
                assert!(refused.is_err(), "{name:?} {file:?}: {refused:?}");
                assert_eq!(home.engines.counts().of(home.minor), 0, "{name:?}");
            }
            home.serves(&mut engine).await;
        });
    });
}

#[test]
fn a_descriptor_that_is_not_the_mounts_device_is_refused() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            let file = home.put("sound");
            let open = Home::open("sound", file);
            let elsewhere = home.folder.path().join("elsewhere");
            std::fs::create_dir(&elsewhere).unwrap();
            let another = unserved(&elsewhere).unwrap();
            greet(&another);
            let unmounted = fuse().unwrap();
            let null = File::open("/dev/null").unwrap();
            let cached = File::open(home.cache.join("sound")).unwrap();
            let (device, null, another) = (home.device.as_fd(), null.as_fd(), another.as_fd());
            for (files, what) in [
                (&[][..], "none"),
                (&[null], "/dev/null"),
                (&[cached.as_fd()], "a file"),
                (&[another], "another pod's device"),
                (&[device, device], "two"),
                (&[device, cached.as_fd()], "a device and a file"),
                (&[device; 9], "more than the kernel gives at once"),
            ] {
                let refused = engine.ask(&open, files).await;
                assert!(refused.is_err(), "{what}: {refused:?}");
            }
            assert!(engine.ask(&open, &[unmounted.as_fd()]).await.is_err(), "a device without a mount");
            drop(unmounted);
            assert_eq!(home.engines.counts().of(home.minor), 0);
            let elsewhere = sys::unmount(&elsewhere, sys::Busy::Detach);
            assert!(elsewhere.unwrap());
        });
    });
}

#[test]
fn a_number_that_the_kernel_does_not_know_is_refused() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            for id in [0, 1, 4711, u32::MAX] {
                assert!(home.ask(&mut engine, &Home::close(id)).await.is_err(), "{id}");
            }
            home.serves(&mut engine).await;
        });
    });
}

#[test]
fn a_line_that_is_no_request_is_refused_and_the_next_is_served() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            for (line, words) in [
                ("no JSON", "can't be read"),
                ("{\"number\":1,\"request\":\"open\"}", "one descriptor"),
                ("{\"number\":1,\"request\":\"open\",\"ino\":-1}", "can't be read"),
                ("{\"number\":1,\"request\":\"mount\"}", "one descriptor"),
                ("{\"number\":1,\"id\":5}", "nothing was asked"),
            ] {
                engine.say(line).await;
                let error = engine.answer().await.error.unwrap();
                assert!(error.contains(words), "{line}: {error}");
            }
            for (request, words) in [("mount", "answers only"), (OPEN, "has a name"), (CLOSE, "has an id")] {
                let request = Request { number: 3, request: request.to_owned(), ..Request::default() };
                let error = home.ask(&mut engine, &request).await.unwrap_err();
                assert!(error.contains(words), "{error}");
            }
            home.serves(&mut engine).await;
        });
    });
}

#[test]
fn half_a_line_a_long_one_and_a_flood_of_descriptors_end_that_connection() {
    isolated(|| {
        at_home(async |home| {
            let device = home.device.as_fd();
            let half = home.dialled(0).await;
            half.hand(b"{\"number\":1,\"requ", &[device]);
            drop(half);
            let mut long = home.redialled().await;
            long.hand(&vec![b'x'; LINE_MAX + 1], &[]);
            assert_eq!(long.line().await, "", "the driver hangs up");
            let mut flood = home.redialled().await;
            for _ in 0..20 {
                flood.hand(b"x", &[device]);
            }
            assert_eq!(flood.line().await, "", "the driver hangs up");
            let mut engine = home.redialled().await;
            home.serves(&mut engine).await;
        });
    });
}

impl Home {
    /// The next connection, once the driver has seen the end of the one before and dropped what came by it.
    async fn redialled(&self) -> Engine {
        loop {
            self.engines.hang_up(UID).await;
            let engine = self.dialled(0).await;
            if !self.engines.counts().is_stuck(self.minor) {
                return engine;
            }
        }
    }
}

#[test]
fn a_source_has_4096_numbers_at_most_whatever_its_engine_says() {
    isolated(|| {
        at_home(async |home| {
            let file = home.put("file");
            let mut engine = home.dialled(OF_SOURCE_MAX - 2).await;
            let open = Home::open("file", file);
            let ids =
                [home.ask(&mut engine, &open).await.unwrap(), home.ask(&mut engine, &open).await.unwrap()];
            for _ in 0..100 {
                let error = home.ask(&mut engine, &open).await.unwrap_err();
                assert!(error.contains("4096 such files"), "{error}");
            }
            let mut anew = home.redialled().await;
            home.ask(&mut anew, &open).await.unwrap_err();
            home.ask(&mut anew, &Home::close(ids[0])).await.unwrap();
            home.ask(&mut anew, &open).await.unwrap();
        });
    });
}

/// Goal: a pod that sends what it should not stops neither the driver nor another pod.
#[test]
fn a_close_that_waits_stops_no_other_engine_and_loses_no_number() {
    isolated(|| {
        let one_worker = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = one_worker.unwrap();
        runtime.block_on(async {
            let (Some(home), Some(other)) = (Home::new(), Home::new()) else { return };
            let (began, file) = (std::time::Instant::now(), home.put("file"));
            let mut engine = home.dialled(OF_SOURCE_MAX - 1).await;
            let mut sound = other.dialled(0).await;
            let open = Home::open("file", file);
            let id = home.ask(&mut engine, &open).await.unwrap();
            // An open beyond the limit.
            let (peer, slow) = lingering();
            let line = serde_json::to_string(&open).unwrap() + "\n";
            let (begin, end) = line.as_bytes().split_at(3);
            engine.hand(begin, &[slow.as_fd()]);
            // The driver has the only copy when it closes it.
            drop(slow);
            engine.hand(end, &[]);
            assert!(engine.answer().await.id.is_none());
            other.serves(&mut sound).await;
            // The thread of this engine is busy: the number is not taken back now, and is once the thread is free.
            let close = Home::close(id);
            let answer = engine.answer_to(&close, &[home.device.as_fd()]).await;
            assert!(answer.busy && answer.id.is_none(), "{answer:?}");
            assert_eq!(home.engines.counts().of(home.minor), OF_SOURCE_MAX);
            let (second_peer, second) = lingering();
            engine.hand(b"{", &[second.as_fd()]);
            let_go(vec![second]);
            other.serves(&mut sound).await;
            drop((peer, second_peer));
            engine.hand(b"}\n", &[]);
            assert!(engine.answer().await.error.is_some());
            let closed = loop {
                let answer = engine.answer_to(&close, &[home.device.as_fd()]).await;
                if !answer.busy {
                    break answer;
                }
            };
            assert_eq!(closed.id, Some(id), "{closed:?}");
            // More than there is room for, and some that nobody reads.
            let (peers, many): (Vec<_>, Vec<_>) = (0..12).map(|_| lingering()).unzip();
            let all: Vec<_> = many.iter().map(OwnedFd::as_fd).collect();
            engine.hand(b"x", &all[..6]);
            engine.hand(b"x", &all[6..9]);
            engine.hand(b"x", &all[9..]);
            let_go(many);
            other.serves(&mut sound).await;
            home.engines.hang_up(UID).await;
            other.serves(&mut sound).await;
            assert!(began.elapsed() < LINGERS, "a worker of the driver waited");
            drop((engine, peers));
            let mut engine = home.redialled().await;
            home.serves(&mut engine).await;
        });
    });
}

#[test]
fn a_driver_that_registers_no_files_takes_earlier_numbers_back() {
    isolated(|| {
        at_home(async |home| {
            let file = home.put("file");
            let mut engine = home.dialled(0).await;
            let id = home.ask(&mut engine, &Home::open("file", file)).await.unwrap();
            home.engines.hang_up(UID).await;
            let mut engine = home.dialled_by(false, 1).await;
            let error = home.ask(&mut engine, &Home::open("file", file)).await.unwrap_err();
            assert!(error.contains("kernelReads"), "{error}");
            assert_eq!(home.ask(&mut engine, &Home::close(id)).await, Ok(id));
            assert_eq!(home.engines.counts().of(home.minor), 0);
        });
    });
}

#[test]
fn a_device_is_not_held_while_the_disk_does_not_answer() {
    isolated(|| {
        at_home(async |home| {
            let mut engine = home.dialled(0).await;
            let disk = unserved(&home.cache).unwrap();
            greet(&disk);
            let answer = engine.answer_to(&Home::open("folder/file", (1, 1)), &[home.device.as_fd()]).await;
            assert!(answer.busy, "{answer:?}");
            home.keeps_no_device();
            assert_eq!(home.engines.counts().of(home.minor), 0);
            drop(disk);
            assert!(sys::unmount(&home.cache, sys::Busy::Detach).unwrap());
        });
    });
}

#[test]
fn a_new_mount_does_not_inherit_the_count_of_an_earlier_one() {
    let counts = Counts::default();
    counts.told(7, OF_SOURCE_MAX);
    counts.add(7).unwrap_err();
    counts.forget(7);
    counts.add(7).unwrap();
}

#[test]
fn a_node_has_32768_numbers_at_most() {
    let counts = Counts::default();
    for source in 1..=8 {
        counts.told(source, u32::MAX);
    }
    let error = counts.add(9).unwrap_err();
    assert!(error.contains("32768"), "{error}");
    counts.keep(|source| source != 3);
    counts.add(9).unwrap();
}

#[test]
fn twenty_thousand_opens_leave_no_number() {
    isolated(|| {
        at_home(async |home| {
            let file = home.put("file");
            let mut engine = home.dialled(0).await;
            let first = home.ask(&mut engine, &Home::open("file", file)).await.unwrap();
            home.ask(&mut engine, &Home::close(first)).await.unwrap();
            for _ in 0..20_000 {
                let id = home.ask(&mut engine, &Home::open("file", file)).await.unwrap();
                assert!(id <= first + 20_000);
                home.ask(&mut engine, &Home::close(id)).await.unwrap();
            }
            assert_eq!(home.engines.counts().of(home.minor), 0);
            for id in 0..=first + 20_001 {
                assert!(forget_here(&home.device, id).is_err(), "the kernel has number {id}");
            }
            home.keeps_no_device();
        });
    });
}

#[test]
fn no_handle_writes_through_a_read_only_copy_of_a_cache() {
    isolated(|| {
        let ([cache], _folder) = dirs();
        rustix::mount::mount("tmpfs", &cache, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        std::fs::write(cache.join("file"), "x").unwrap();
        let copy = read_only::copy(&cache).unwrap();
        let file = read_only::open_below(&copy, "file").unwrap();
        let again = format!("/proc/self/fd/{}", file.as_raw_fd());
        let refused = File::options().write(true).open(&again).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
        std::fs::write(cache.join("file"), "the pod writes on").unwrap();
    });
}
