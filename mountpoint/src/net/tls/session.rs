//! What a handshake leaves: the keys of both directions, and rustls, which makes new ones and keeps tickets for later connections.

use std::io;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ExtractedSecrets, ProtocolVersion, SupportedCipherSuite};

use crate::net::tls::record::{Fatal, Keys};

/// What client and store agreed on.
#[derive(Clone, Debug)]
pub(in crate::net) struct Agreed {
    pub(in crate::net) version: ProtocolVersion,
    pub(in crate::net) suite: SupportedCipherSuite,
    /// The store's own certificate.
    pub(in crate::net) certificate: Option<CertificateDer<'static>>,
}

/// See the module.
pub(super) struct Session {
    rustls: KernelConnection<ClientConnectionData>,
    pub(super) opens: Keys,
    pub(super) seals: Keys,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("opens", &self.opens)
            .field("seals", &self.seals)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// # Errors
    /// A suite that [`Keys`] does not know.
    pub(super) fn new(
        secrets: ExtractedSecrets,
        rustls: KernelConnection<ClientConnectionData>,
    ) -> io::Result<Self> {
        let suite = rustls.negotiated_cipher_suite();
        let (opens, seals) = (Keys::new(suite, secrets.rx)?, Keys::new(suite, secrets.tx)?);
        Ok(Self { rustls, opens, seals })
    }

    /// The store seals its next record with new keys.
    ///
    /// # Errors
    /// It can't: in TLS 1.2 keys stay.
    pub(super) fn renew_opens(&mut self) -> Result<(), Fatal> {
        let refused = |why: &dyn std::fmt::Display| Fatal::unexpected(format!("TLS key update: {why}"));
        let secret = self.rustls.update_rx_secret().map_err(|e| refused(&e))?;
        self.opens = Keys::new(self.rustls.negotiated_cipher_suite(), secret).map_err(|e| refused(&e))?;
        Ok(())
    }

    /// We seal our next record with new keys.
    ///
    /// # Errors
    /// As [`Session::renew_opens`].
    pub(super) fn renew_seals(&mut self) -> io::Result<()> {
        let secret = self.rustls.update_tx_secret().map_err(io::Error::other)?;
        self.seals = Keys::new(self.rustls.negotiated_cipher_suite(), secret)?;
        Ok(())
    }

    /// Keeps a ticket, by which a later connection goes on with this session.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn keep_ticket(&mut self, payload: &[u8]) -> Result<(), Fatal> {
        self.rustls.handle_new_session_ticket(payload).map_err(|e| {
            Fatal::new(
                AlertDescription::DecodeError,
                format!("the store sent a TLS session ticket that is none: {e}"),
            )
        })
    }
}
