//! `/healthz` for a driver. Enters: its socket. Leaves: 200 if a Probe over a new connection answers ready, else 500 and the reason.
//!
//! Never here: a restart of anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use crate::{driver, log};

/// The routes of the HTTP server; `within` limits a Probe.
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
}
