//! TLS by rustls with the cryptography of ring, trusting the system's roots or the caller's.

use std::sync::Arc;

use kvtide_files::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Returns a client configuration that trusts the roots in a PEM file, or the system's roots. O(roots).
pub(crate) fn client_config(roots: Option<&[u8]>) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let added = certificate
                    .map_err(|reason| reason.to_string())
                    .and_then(|certificate| store.add(certificate).map_err(|reason| reason.to_string()));
                added.map_err(|reason| unreadable("the roots", &reason))?;
            }
        }
        // Certificates that cannot be parsed are left out.
        None => _ = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if store.is_empty() {
        let what = if roots.is_some() { "the roots" } else { "the system's roots" };
        return Err(unreadable(what, "there is no certificate"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|reason| unreadable("the protocol", &reason.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn unreadable(what: &str, reason: &str) -> Error {
    Error::io("read", what.as_ref(), std::io::Error::other(reason.to_owned()))
}
