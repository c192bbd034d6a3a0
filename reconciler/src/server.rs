//! The HTTP server of `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::sync::watch::Receiver;

use crate::main_loop::{Health, TURNS_EVERY};
use crate::metrics;

/// Time since the last turn of the wheel after which `/healthz` fails: the main loop hangs.
const HANGS_AFTER: Duration = TURNS_EVERY.saturating_mul(6);

/// Serves until the future is dropped.
///
/// # Errors
/// The address can't be bound, or the listener fails.
pub async fn serve(address: SocketAddr, health: Receiver<Health>, page: Page) -> anyhow::Result<()> {
    let listener =
        tokio::net::TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    axum::serve(listener, router(health, page)).await.with_context(|| format!("serving on {address}"))
}

/// A function that renders the page of metrics.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// The routes of the HTTP server: health and metrics.
pub fn router(health: Receiver<Health>, page: Page) -> Router {
    let (live, ready) = (health.clone(), health);
    Router::new()
        .route("/healthz", get(async move || lively(&live.borrow())))
        .route("/metrics", get(async move || ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page())))
        .route("/readyz", get(async move || readiness(&ready.borrow())))
}

fn lively(health: &Health) -> (StatusCode, &'static str) {
    if health.turned.elapsed() < HANGS_AFTER {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the reconciler hangs\n")
    }
}

fn readiness(health: &Health) -> (StatusCode, &'static str) {
    if health.ready {
        (StatusCode::OK, "ok\n")
    } else {
        let why = "caches are not filled: is the CRD installed, may this account list pods, claims, volumes, attachments?\n";
        (StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_stopped_wheel_is_not_healthy_and_empty_caches_are_not_ready() {
        let now = Instant::now();
        let health = Health { ready: false, missed: false, turned: now };
        assert_eq!(lively(&health).0, StatusCode::OK);
        assert_eq!(readiness(&health).0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(readiness(&Health { ready: true, ..health }).0, StatusCode::OK);
        if let Some(before) = now.checked_sub(HANGS_AFTER) {
            assert_eq!(lively(&Health { turned: before, ..health }).0, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}
