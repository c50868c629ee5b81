//! The options of an object store: a URL, and pairs of strings with the names that the provider's tools use.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use kvtide_files::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
};
use url::Url;

use super::bounded::Bounded;

const SCHEMES: &str = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";

/// The location and the settings of an object store.
#[derive(Clone, Default)]
pub struct ObjectStorageOptions {
    /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
    pub url: String,
    /// Settings under the names of the provider's tools: `region`, `endpoint`, `access_key_id`, `secret_access_key`,
    /// `allow_http`, … Settings that are missing here are read from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`),
    /// as those tools do.
    pub options: Vec<(String, String)>,
    /// Certificates in PEM that may sign a server's certificate, besides the system's.
    pub roots: Option<Vec<u8>>,
}

impl std::fmt::Debug for ObjectStorageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ObjectStorageOptions").field("options", &names).finish_non_exhaustive()
    }
}

/// Builds the provider's client with the given settings; a name that the provider does not know is refused.
macro_rules! build {
    ($builder:ty, $key:ty, $given:expr) => {{
        let connector = Connector { certificates: $given.certificates()? };
        let mut builder =
            <$builder>::from_env().with_url(&$given.url).with_retry(no_retry()).with_http_connector(connector);
        for (name, value) in &$given.options {
            builder = builder.with_config(key::<$key>(name)?, value);
        }
        let incomplete =
            |_| Error::argument("options", "incomplete, or has a wrong value", "the settings that the provider needs");
        Arc::new(builder.build().map_err(incomplete)?)
    }};
}

impl ObjectStorageOptions {
    pub(super) fn open(&self) -> Result<(Arc<dyn ObjectStore>, Path)> {
        // The wrong part of a URL may be its password.
        let wrong = || Error::argument("url", "another text", SCHEMES);
        let url = Url::parse(&self.url).map_err(|_| wrong())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong());
        }
        let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|_| wrong())?;
        // If a provider was installed for the process before, it stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder, AmazonS3ConfigKey, self),
            ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder, GoogleConfigKey, self),
            ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder, AzureConfigKey, self),
            _ => return Err(wrong()),
        };
        Ok((client, prefix))
    }

    fn certificates(&self) -> Result<Vec<Certificate>> {
        let Some(pem) = &self.roots else { return Ok(Vec::new()) };
        let failed = |reason: &str| Error::io("read", "the roots".as_ref(), std::io::Error::other(reason));
        match Certificate::from_pem_bundle(pem) {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) => Err(failed("there is no certificate")),
            Err(_) => Err(failed("they are not PEM")),
        }
    }
}

/// Returns the key of a setting. A setting that would disable certificate checks has no key, with a provider's prefix
/// (`aws_`) neither.
fn key<K: FromStr>(name: &str) -> Result<K> {
    let lower = name.to_ascii_lowercase();
    let is_unsafe = lower.ends_with(ClientConfigKey::AllowInvalidCertificates.as_ref());
    let known = if is_unsafe { None } else { lower.parse().ok() };
    known.ok_or_else(|| Error::argument("options", name, "names that the provider's tools know"))
}

/// No retries: `Guarded` retries.
fn no_retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::from_secs(60) }
}

/// Makes the client's connections with the caller's certificates, and bounds their answers.
#[derive(Debug)]
struct Connector {
    certificates: Vec<Certificate>,
}

impl Connector {
    /// The client's options. Certificates are always checked, even if the environment says otherwise
    /// (`AWS_ALLOW_INVALID_CERTIFICATES`).
    fn checked(&self, options: &ClientOptions) -> ClientOptions {
        let with =
            |options: ClientOptions, certificate: &Certificate| options.with_root_certificate(certificate.clone());
        self.certificates.iter().fold(options.clone().with_allow_invalid_certificates(false), with)
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(&self.checked(options))?;
        Ok(HttpClient::new(Bounded(client)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_checked_whatever_the_environment_says() {
        let connector = Connector { certificates: Vec::new() };
        let checks = |options: &ClientOptions| {
            options.get_config_value(&ClientConfigKey::AllowInvalidCertificates).as_deref() == Some("false")
        };
        let lax = ClientOptions::new().with_allow_invalid_certificates(true);
        assert!(!checks(&lax));
        assert!(checks(&connector.checked(&lax)));
    }
}
