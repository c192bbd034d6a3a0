//! A Mountpoint Pod of two threads: a mounter that takes devices, and an engine that serves an empty directory and can be killed.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mountpoint::sync::atomic::{AtomicBool, Ordering};
use mountpoint::sync::{Arc, Mutex};

use crate::contract::comm::Comm;
use crate::contract::message::{self, Answer, MountMessage};
use crate::contract::restart::Restarting;

/// A running pod.
#[derive(Clone, Debug)]
pub(crate) struct MountpointPod {
    comm: Comm,
    inside: Arc<Mutex<Inside>>,
}

#[derive(Debug, Default)]
struct Inside {
    messages: Vec<MountMessage>,
    engine: Option<Engine>,
    refusal: Option<String>,
}

impl MountpointPod {
    /// Listens below this kubelet's directory, for the life of the process.
    pub(crate) fn start(kubelet: &Path, uid: &str) -> Self {
        Self::at(Comm::on_host(kubelet, uid))
    }

    /// Listens in this directory, for the life of the process.
    pub(crate) fn at(comm: Comm) -> Self {
        std::fs::create_dir_all(comm.directory()).unwrap();
        let pod = Self { comm, inside: Arc::default() };
        pod.listen();
        pod
    }

    /// Creates a new socket, like a mounter whose engine has died.
    pub(crate) fn listen(&self) {
        let _ = std::fs::remove_file(self.comm.socket());
        let listener = message::listen(&self.comm.socket()).unwrap();
        let inside = Arc::clone(&self.inside);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let (got, mount) = message::receive(&stream, Duration::from_secs(60)).unwrap();
                let mut inside = inside.lock();
                inside.messages.push(got);
                let answer = match inside.refusal.clone() {
                    Some(error) => Answer::Failed { error },
                    None => {
                        inside.engine = Some(Engine::start(mount.device));
                        Answer::Ready
                    }
                };
                message::answer(&stream, &answer).unwrap();
            }
        });
    }

    /// The messages of all hand-overs so far.
    pub(crate) fn messages(&self) -> Vec<MountMessage> {
        self.inside.lock().messages.clone()
    }

    /// Lets further hand-overs fail with this error, or (`None`) succeed.
    pub(crate) fn refuse(&self, error: Option<&str>) {
        self.inside.lock().refusal = error.map(str::to_owned);
    }

    /// Ends the engine like SIGKILL: its device is closed.
    pub(crate) fn kill_engine(&self) {
        drop(self.inside.lock().engine.take().expect("an engine").end());
    }

    /// Ends the engine like SIGKILL, keeps its device, and writes the state that the next one is about to go on.
    pub(crate) fn kill_engine_and_keep_device(&self) -> OwnedFd {
        let device = self.inside.lock().engine.take().expect("an engine").end().expect("its device");
        let new = self.comm.directory().join("new");
        let state = Restarting { since: k8s_openapi::jiff::Timestamp::now() };
        std::fs::write(self.comm.error(), "signal: 9\n").unwrap();
        std::fs::write(&new, state.to_string()).unwrap();
        std::fs::rename(new, self.comm.state()).unwrap();
        device
    }

    /// Writes the file about a missing bucket.
    pub(crate) fn bucket_is_gone(&self) {
        let new = self.comm.directory().join("new");
        std::fs::write(&new, "the bucket is gone\n").unwrap();
        std::fs::rename(new, self.comm.gone()).unwrap();
    }

    /// Starts the next engine on the kept device.
    pub(crate) fn go_on(&self, device: OwnedFd) {
        self.inside.lock().engine = Some(Engine::start(device));
        std::fs::remove_file(self.comm.state()).unwrap();
    }
}

#[derive(Debug)]
struct Engine {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<OwnedFd>>,
}

impl Engine {
    fn start(device: OwnedFd) -> Self {
        rustix::fs::fcntl_setfl(&device, rustix::fs::OFlags::NONBLOCK).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut device = File::from(device);
            let mut request = vec![0; 2 << 20];
            while !stopped.load(Ordering::Acquire) {
                match device.read(&mut request) {
                    Ok(_) => {
                        if let Some(reply) = reply(&request) {
                            let _ = device.write(&reply);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    // Unmounted.
                    Err(_) => return None,
                }
            }
            Some(device.into())
        });
        Self { stop, thread }
    }

    /// Stops the engine. Returns the device, unless it was unmounted.
    fn end(self) -> Option<OwnedFd> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

/// The FUSE replies for the start and for the root's attributes; other requests are not implemented.
fn reply(request: &[u8]) -> Option<Vec<u8>> {
    let (unique, word) = (&request[8..16], |value: u32| value.to_ne_bytes());
    let body = match u32::from_ne_bytes(request[4..8].try_into().unwrap()) {
        // FORGET, INTERRUPT, BATCH_FORGET have no reply.
        2 | 36 | 42 => return None,
        26 => {
            let mut init = vec![0; 64];
            init[..8].copy_from_slice(&[word(7), word(31)].concat());
            init[20..24].copy_from_slice(&word(128 << 10));
            Ok(init)
        }
        3 => {
            let mut attributes = vec![0; 104];
            attributes[16] = 1;
            attributes[76..84].copy_from_slice(&[word(0o40755), word(2)].concat());
            Ok(attributes)
        }
        _ => Err(-38_i32),
    };
    let (error, body) = body.map_or_else(|error| (error, Vec::new()), |body| (0, body));
    let length = u32::try_from(16 + body.len()).unwrap();
    Some([&word(length)[..], &error.to_ne_bytes(), unique, &body].concat())
}
