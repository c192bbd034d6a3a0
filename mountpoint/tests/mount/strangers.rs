//! A store that sends the engine to another host: no request goes there, and so no signature.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::io::Errno;

use crate::common::{Pattern, Setup, Store, TestMount};

/// A host that answers for the store: it passes requests on, or sends them elsewhere.
struct Sender {
    address: SocketAddr,
    sends_on: Arc<AtomicBool>,
    status: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Sender {
    fn before(store: SocketAddr, elsewhere: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = Self {
            address: listener.local_addr().unwrap(),
            sends_on: Arc::default(),
            status: Arc::new(AtomicUsize::new(307)),
            sent: Arc::default(),
            open: Arc::default(),
        };
        let (sends_on, status, sent, open) = (
            Arc::clone(&sender.sends_on),
            Arc::clone(&sender.status),
            Arc::clone(&sender.sent),
            Arc::clone(&sender.open),
        );
        thread::spawn(move || {
            for engine in listener.incoming().map_while(Result::ok) {
                if sends_on.load(SeqCst) {
                    sent.fetch_add(1, SeqCst);
                    let _ = send(engine, status.load(SeqCst), elsewhere);
                    continue;
                }
                let store = TcpStream::connect(store).unwrap();
                open.lock().unwrap().push(engine.try_clone().unwrap());
                for (mut from, mut to) in
                    [(engine.try_clone().unwrap(), store.try_clone().unwrap()), (store, engine)]
                {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        sender
    }

    fn set(&self, sends_on: bool, status: usize) {
        self.status.store(status, SeqCst);
        self.sends_on.store(sends_on, SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Answers one request with the address of another host.
fn send(engine: TcpStream, status: usize, elsewhere: SocketAddr) -> std::io::Result<()> {
    let mut head = BufReader::new(engine.try_clone()?);
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let location = format!("http://{elsewhere}/bucket/file");
    write!(
        &engine,
        "HTTP/1.1 {status} Elsewhere\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
}

#[test]
fn a_store_that_names_another_host_gets_no_signature_sent_there() {
    let store = Store::new();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = Sender::before(store.address(), elsewhere.local_addr().unwrap());
    let setup = Setup { endpoint: Some(format!("http://{}", sender.address)), ..Setup::new(&[]) };
    elsewhere.set_nonblocking(true).unwrap();
    for n in 0..4 {
        store.put(&format!("file{n}"), Pattern(1).bytes(0, 1 << 20));
    }
    let Some(mount) = TestMount::of(&store, &setup) else { return };
    for (n, status) in [301, 302, 307, 308].into_iter().enumerate() {
        sender.set(true, status);
        let sent = sender.sent.load(SeqCst);
        let error = fs::read(mount.path(&format!("file{n}"))).expect_err("the store does not answer");
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{status}: {error}");
        assert!(sender.sent.load(SeqCst) > sent, "{status}: it was sent elsewhere");
        let error = fs::File::create_new(mount.path("new")).and_then(|file| file.sync_all());
        error.expect_err("the store does not take it");
        sender.set(false, status);
        assert!(Pattern(1).is(0, &fs::read(mount.path(&format!("file{n}"))).unwrap()), "{status}");
    }
    let came = elsewhere.accept().map(|(_, from)| from);
    let none = came.expect_err("a request went to the host that the store named");
    assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
}
