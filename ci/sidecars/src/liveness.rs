//! `/healthz` for a driver. Enters: its socket. Leaves: 200 if a Probe over a connection of its own says ready, else 500 and why.
//!
//! Never here: an end because the driver is not there yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::{driver, log};

/// Between two looks for a driver that is not there yet.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for the driver, for as long as it takes; its name.
pub async fn wait_for(socket: &std::path::Path, within: Duration) -> String {
    loop {
        match driver::name(socket, within).await {
            Ok(name) => return name,
            Err(error) => log(format_args!("the driver is not there yet: {error:#}")),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The routes.
pub fn router(socket: PathBuf, within: Duration) -> Router {
    let socket = Arc::new(socket);
    Router::new().route(
        "/healthz",
        get(async move || match driver::ready(&socket, within).await {
            Ok(true) => (StatusCode::OK, "ok".to_owned()),
            Ok(false) => unwell("the driver answers that it is not ready".to_owned()),
            Err(error) => unwell(format!("{error:#}")),
        }),
    )
}

fn unwell(why: String) -> (StatusCode, String) {
    log(format_args!("health check failed: {why}"));
    (StatusCode::INTERNAL_SERVER_ERROR, why)
}

#[cfg(test)]
pub(crate) mod testing {
    //! One request, as a probe makes it.

    use axum::Router;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    /// Serves the routes on loopback and asks for `/healthz`: status line and body.
    pub(crate) async fn healthz(router: Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::testing::healthz;
    use super::*;
    use crate::driver::testing::{Says, serve};

    #[tokio::test]
    async fn health_is_what_the_driver_answers_to_a_probe() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let ask = || healthz(router(socket.clone(), Duration::from_secs(30)));
        let gone = ask().await;
        assert!(gone.contains(" 500 ") && gone.contains("csi.sock"), "{gone}");
        let says = serve(&socket);
        let well = ask().await;
        assert!(well.contains(" 200 ") && well.ends_with("ok"), "{well}");
        says.send_replace(Says::Ready(Some(false)));
        assert!(ask().await.contains("not ready"));
        says.send_replace(Says::Error);
        let error = ask().await;
        assert!(error.contains(" 500 ") && error.contains("no device"), "{error}");
    }

    #[tokio::test]
    async fn a_driver_that_comes_later_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let waiting = tokio::spawn({
            let socket = socket.clone();
            async move { wait_for(&socket, Duration::from_secs(30)).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let _says = serve(&socket);
        assert_eq!(waiting.await.unwrap(), "driver.test");
    }
}
