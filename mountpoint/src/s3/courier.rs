//! Requests to other services than the store. They use the same connection pool, with the proxies and certificates of the mount.

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use http::Request;

use crate::s3::auth::credentials_http::Http;

/// A sender of small requests to any `http://` or `https://` URL. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Courier(pub(crate) Http);

impl Courier {
    /// Sends a POST request. Returns the status of the answer.
    ///
    /// # Errors
    /// A sentence with the reason why there is no answer.
    pub async fn post(self, request: Request<Bytes>) -> Result<u16, String> {
        let request = request.map(SdkBody::from);
        let request = HttpRequest::try_from(request).map_err(|error| error.to_string())?;
        let answer = self.0.exchange(request).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| {
            let cause = std::error::Error::source(&error);
            cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        })
    }
}
