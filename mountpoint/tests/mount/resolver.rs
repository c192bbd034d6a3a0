//! DNS that fails for a while: a mount of a store with a name rides out NXDOMAIN and SERVFAIL, like an outage of the store.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use testkit::proxy::{Proxy, Weather};

use super::adopted::{Adopted, DEVICE, start_so};
use crate::common::{Pattern, Setup, Store, command, need, need_tool, until};

const LEN: usize = 300_000;
const NAME: &str = "store.test";

const NO_ERROR: u8 = 0;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;

/// A name server on an address of this test's own, at DNS's port. It knows every name as 127.0.0.1, or none.
struct Resolver {
    address: Ipv4Addr,
    code: Arc<AtomicU8>,
    /// Questions that were answered with an error.
    refused: Arc<AtomicUsize>,
}

impl Resolver {
    /// `None` where port 53 is not for us.
    fn start() -> Option<Self> {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 1, low, 53);
        let socket = UdpSocket::bind((address, 53)).ok()?;
        let (code, refused) = (Arc::new(AtomicU8::new(NO_ERROR)), Arc::new(AtomicUsize::new(0)));
        let resolver = Self { address, code: Arc::clone(&code), refused: Arc::clone(&refused) };
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut question) {
                let code = code.load(SeqCst);
                if let Some(answer) = answer(&question[..len], code) {
                    let _ = socket.send_to(&answer, from);
                    refused.fetch_add(usize::from(code != NO_ERROR), SeqCst);
                }
            }
        });
        Some(resolver)
    }
}

/// The answer of a server that knows the name, or says this code. `None`: that was no question.
fn answer(question: &[u8], code: u8) -> Option<Vec<u8>> {
    const A: [u8; 4] = [0, 1, 0, 1];
    const TTL: [u8; 4] = [0, 0, 0, 1];
    let name_len = question.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let asked = question.get(12..12 + name_len + 4)?;
    let is_known = code == NO_ERROR && asked[name_len..] == A;
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(is_known), 0, 0, 0, 0]);
    answer.extend(asked);
    if is_known {
        // The name is that of the question.
        answer.extend([0xc0, 12]);
        answer.extend(A);
        answer.extend(TTL);
        answer.extend([0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

/// A mount whose engine asks this resolver: the mount namespace of the engine has a file that names no other one.
fn mounted(store: &Store, dir: &Path, resolver: &Resolver, proxy: &Proxy, folder: &Path) -> Adopted {
    // Copies of other tests' mounts would keep their engines.
    const OWN: &str = "while read -r _ _ _ _ point _; do
case \"$point\" in */mnt) umount -l \"$point\" ;; esac
done </proc/self/mountinfo
mount --bind \"$RESOLV\" /etc/resolv.conf && unset RESOLV && exec \"$0\" \"$@\"";
    let file = folder.join("resolv.conf");
    fs::write(&file, format!("nameserver {}\noptions timeout:1 attempts:1\n", resolver.address)).unwrap();
    let endpoint = Some(format!("http://{NAME}:{}", proxy.address().port()));
    let setup = Setup { endpoint, ..Setup::new(&["--operation-timeout", "300"]) };
    let plain = command(store, DEVICE.as_ref(), &setup);
    let mut own = Command::new("unshare");
    own.args(["--mount", "--", "sh", "-c", OWN]).arg(plain.get_program()).args(plain.get_args());
    own.env_clear()
        .envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("RESOLV", file);
    let log = fs::File::create(folder.join("log")).unwrap();
    start_so(dir, &own, log.into())
}

fn is_read(path: &Path, pattern: u64) -> io::Result<bool> {
    fs::read(path).map(|bytes| bytes.len() == LEN && Pattern(pattern).is(0, &bytes))
}

#[test]
fn a_name_that_is_unknown_for_a_while_fails_no_read_and_no_write() {
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if !need("/dev/fuse", fuse.is_ok())
        || !need("root", rustix::process::geteuid().is_root())
        || !need_tool("unshare")
    {
        return;
    }
    let resolver = Resolver::start().expect("port 53 of an address of loopback");
    let (store, folder, dir) = (Store::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let proxy = Proxy::start(store.address());
    (0..5).for_each(|n| store.plant(&format!("file-{n}"), &Pattern(n).bytes(0, LEN)));
    let mut adopted = mounted(&store, dir.path(), &resolver, &proxy, folder.path());
    let log = || fs::read_to_string(folder.path().join("log")).unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(is_read(&path("file-0"), 0).unwrap_or_else(|e| panic!("{e}\n{}", log())));
    for (n, code) in [(1, NXDOMAIN), (3, SERVFAIL)] {
        resolver.code.store(code, SeqCst);
        // Connections that are open need no name, and the address of before serves as long as it answers.
        proxy.set(Weather::clear().refused());
        proxy.set(Weather::clear());
        assert!(is_read(&path(&format!("file-{n}")), n).unwrap_or_else(|e| panic!("{code}: {e}\n{}", log())));
        let n = n + 1;
        let before = resolver.refused.load(SeqCst);
        proxy.set(Weather::clear().refused());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| is_read(&path(&format!("file-{n}")), n));
            let writer = scope.spawn(|| fs::write(path(&format!("new-{n}")), Pattern(n + 10).bytes(0, LEN)));
            until("the engine asks for the name", || resolver.refused.load(SeqCst) >= before + 2);
            assert!(!reader.is_finished() && !writer.is_finished(), "nothing fails meanwhile\n{}", log());
            proxy.set(Weather::clear());
            resolver.code.store(NO_ERROR, SeqCst);
            assert!(reader.join().unwrap().unwrap_or_else(|e| panic!("{code}: {e}\n{}", log())));
            writer.join().unwrap().unwrap_or_else(|e| panic!("{code}: {e}\n{}", log()));
        });
        let written = store.get(&format!("new-{n}")).expect("it is stored");
        assert!(written.len() == LEN && Pattern(n + 10).is(0, &written));
    }
    kill_process(Pid::from_child(&adopted.engine), Signal::TERM).unwrap();
    until("the signal ends it", || adopted.engine.try_wait().unwrap().is_some());
    assert_eq!(adopted.engine.wait().unwrap().code(), Some(0), "{}", log());
    unmount(dir.path(), UnmountFlags::empty()).unwrap();
}
