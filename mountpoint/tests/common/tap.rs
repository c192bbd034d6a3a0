//! A relay between an engine and its store: passes every byte on, records the requests, and can switch to another store.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::Store;

/// Listens until the test ends.
#[derive(Debug)]
pub(crate) struct Tap {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    open: Vec<TcpStream>,
    /// Bytes from the engine, by connection.
    asked: Vec<Vec<u8>>,
}

impl Tap {
    /// A tap on the way to this store.
    pub(crate) fn to(store: &Store) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        let shared = Shared { to: store.address(), open: Vec::new(), asked: Vec::new() };
        let shared = Arc::new(Mutex::new(shared));
        let tap = Self { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for engine in listener.incoming() {
                let _ = engine.and_then(|engine| connect(&shared, engine));
            }
        });
        tap
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends new requests to this store from now on, and closes the connections to the other one.
    pub(crate) fn turn_to(&self, store: &Store) {
        let mut shared = self.shared.lock().unwrap();
        shared.to = store.address();
        for stream in shared.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Heads of the requests whose first line has this beginning.
    pub(crate) fn asked(&self, begin: &str) -> Vec<String> {
        let shared = self.shared.lock().unwrap();
        let texts = shared.asked.iter().map(|bytes| String::from_utf8_lossy(bytes));
        texts
            .flat_map(|text| {
                let starts: Vec<_> = text.match_indices(begin).map(|(at, _)| at).collect();
                let head = |at: usize| text[at..].split("\r\n\r\n").next().map(str::to_owned);
                starts.into_iter().filter_map(head).collect::<Vec<_>>()
            })
            .collect()
    }
}

fn connect(shared: &Arc<Mutex<Shared>>, engine: TcpStream) -> std::io::Result<()> {
    let (number, store) = {
        let mut shared = shared.lock().unwrap();
        let store = TcpStream::connect(shared.to)?;
        shared.open.extend([engine.try_clone()?, store.try_clone()?]);
        shared.asked.push(Vec::new());
        (shared.asked.len() - 1, store)
    };
    engine.set_nodelay(true)?;
    store.set_nodelay(true)?;
    let (from_engine, from_store) = (engine.try_clone()?, store.try_clone()?);
    let heard = Arc::clone(shared);
    thread::spawn(move || {
        pass(from_engine, store, |bytes| heard.lock().unwrap().asked[number].extend(bytes))
    });
    thread::spawn(move || pass(from_store, engine, |_| ()));
    Ok(())
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut heard: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        heard(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
