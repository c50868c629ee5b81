//! TLS by rustls, with the cryptography of ring: the system's roots, or those of the caller.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};

/// How to speak TLS with those who are signed by the roots in a PEM file, or else by the system's. O(roots).
pub(crate) fn client_config(roots: Option<&[u8]>) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    match roots {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let added = certificate
                    .map_err(|reason| reason.to_string())
                    .and_then(|certificate| store.add(certificate).map_err(|reason| reason.to_string()));
                added.map_err(|reason| Error::Certificates { what: "the roots", reason })?;
            }
        }
        // A system has some that nobody can read; the others do.
        None => _ = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if store.is_empty() {
        let what = if roots.is_some() { "the roots" } else { "the system's roots" };
        return Err(Error::Certificates { what, reason: "there is no certificate".to_owned() });
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|reason| Error::Certificates { what: "the protocol", reason: reason.to_string() })?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
