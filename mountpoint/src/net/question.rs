//! DNS queries for a host's addresses: one at a time, each on its own thread.
//!
//! A caller that needs the answer meanwhile joins the query in flight. The thread does nothing else, so a hanging disk, of the cache or of
//! spilled parts, delays no query.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use tokio::sync::watch;

use crate::broker;
use crate::supervise::no_thread;
use crate::sync::{Arc, Mutex};

/// The answer, shared by all callers of one query.
type Answer = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

/// DNS queries for the addresses of one host: at most one is in flight.
#[derive(Debug, Default)]
pub(crate) struct Question {
    out: Mutex<Option<watch::Receiver<Option<Answer>>>>,
}

impl Question {
    /// Resolves a name to its addresses. The caller limits the time; the query stays in flight until the system's resolver gives up.
    ///
    /// # Errors
    /// The errors of the resolver, or the system can't start a thread for the query.
    pub(crate) async fn ask(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = host.to_owned();
        self.ask_with(move || match broker::of_this_process() {
            // A sandboxed engine reads neither the resolver's files nor its libraries.
            Some(broker) => broker.resolve(&host, port),
            None => Ok((host.as_str(), port).to_socket_addrs()?.collect()),
        })
        .await
    }

    async fn ask_with(
        &self,
        resolve: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut answer = self.join(resolve)?;
        let answer = answer.wait_for(Option::is_some).await.map(|answer| answer.clone());
        match answer {
            Ok(Some(Ok(addresses))) => Ok(addresses.to_vec()),
            Ok(Some(Err(error))) => Err(io::Error::new(error.kind(), error)),
            Ok(None) | Err(_) => Err(io::Error::other("the thread that asked DNS panicked")),
        }
    }

    /// Joins the query in flight, or starts one on its own thread.
    ///
    /// # Errors
    /// The system can't start a thread for the query.
    fn join(
        &self,
        resolve: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<watch::Receiver<Option<Answer>>> {
        let mut out = self.out.lock();
        let open = |answer: &&watch::Receiver<Option<Answer>>| {
            answer.borrow().is_none() && answer.has_changed().is_ok()
        };
        if let Some(answer) = out.as_ref().filter(open) {
            return Ok(answer.clone());
        }
        let (say, answer) = watch::channel(None);
        let ask = move || _ = say.send(Some(resolve().map(Arc::from).map_err(Arc::new)));
        std::thread::Builder::new().name("dns".to_owned()).spawn(ask).map_err(no_thread)?;
        *out = Some(answer.clone());
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join_all;

    use super::*;
    use crate::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[tokio::test]
    async fn callers_that_come_while_a_question_is_out_join_it() {
        let (question, asked) = (Question::default(), Arc::new(AtomicU32::new(0)));
        let (open, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let ask = || {
            let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
            question.ask_with(move || {
                let nth = asked.fetch_add(1, SeqCst) as u16;
                gate.lock().recv().map_err(io::Error::other)?;
                Ok(vec![SocketAddr::from(([10, 0, 0, 1], nth))])
            })
        };
        // All of them have asked before the answer comes.
        let (answers, ()) = tokio::join!(join_all((0..20).map(|_| ask())), async { open.send(()).unwrap() });
        for answer in answers {
            assert_eq!(answer.unwrap(), [SocketAddr::from(([10, 0, 0, 1], 0))]);
        }
        assert_eq!(asked.load(SeqCst), 1);
        open.send(()).unwrap();
        let later = ask().await.unwrap();
        assert_eq!(
            later,
            [SocketAddr::from(([10, 0, 0, 1], 1))],
            "an answer is not kept for later questions"
        );
        drop(open);
        assert!(ask().await.is_err(), "each caller hears why there is none");
    }

    #[tokio::test]
    async fn a_new_host_is_resolved_while_the_name_of_another_has_no_answer() {
        let (silent, new) = (Question::default(), Question::default());
        let (let_go, waits) = mpsc::channel::<()>();
        let out = silent.join(move || waits.recv().map(|()| Vec::new()).map_err(io::Error::other)).unwrap();
        let addresses = new.ask("localhost", 80).await.unwrap();
        assert!(!addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(out.borrow().is_none(), "the other question is still out");
        drop(let_go);
    }

    #[test]
    fn a_name_is_resolved_while_all_threads_for_disks_wait() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (let_go, waits) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || _ = waits.recv());
        let addresses = runtime.block_on(Question::default().ask("localhost", 80)).unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
        assert!(!addresses.is_empty());
        drop(let_go);
    }
}
