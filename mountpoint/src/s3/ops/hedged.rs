//! Hedged reads: a late GET is sent a second time, on another connection, and the first answer counts.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::s3::failure::Failure;
use crate::s3::wire::{Answer, Draft, Wire};

/// Exchanges a request that changes nothing, and sends it again if the answer is late (see [`Wire::exchange`]). The second answer counts
/// only if it is a success.
pub(crate) async fn exchange(wire: &Wire, mut draft: Draft<'_>) -> Result<Answer, Failure> {
    let hedge = &wire.hedge;
    let learn = |answer: &Answer| hedge.answered(answer.status, answer.waited);
    let sent = OnceLock::new();
    draft.sent = Some(&sent);
    let draft = &draft;
    let mut first = pin!(wire.exchange(draft));
    tokio::select! {
        biased;
        answer = &mut first => return answer.inspect(learn),
        () = hedge.late(&wire.clock, &sent) => {}
    }
    wire.metrics.s3_hedges.inc();
    tracing::debug!(operation = draft.operation, "the answer is late: the request goes out a second time");
    // Boxed, because few requests need it.
    let second = Box::pin(async {
        let mut draft = draft.again();
        let late = sent.get().map_or(Duration::ZERO, |&at| wire.clock.now().saturating_duration_since(at));
        draft.clocks.unheard = draft.clocks.unheard.saturating_sub(late);
        let answer = wire.exchange(&draft).await;
        answer.inspect(learn).ok().filter(|answer| answer.status.is_success())
    });
    let answer = match select(first, second).await {
        Either::Left((Err(failure), second)) => return second.await.ok_or(failure),
        Either::Left((answer, _)) => answer,
        Either::Right((Some(answer), _)) => return Ok(answer),
        Either::Right((None, first)) => first.await,
    };
    answer.inspect(learn)
}
