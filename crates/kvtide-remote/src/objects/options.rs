//! What an object store is made with: a URL, and pairs of strings as every tool of its provider knows them.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpClient, HttpConnector, ReqwestConnector};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
};
use url::Url;

use crate::error::{Error, Result};

const SCHEMES: &str = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix";

/// Where an object store is, and how it is used.
#[derive(Clone, Default)]
pub struct ObjectStorageOptions {
    /// `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
    pub url: String,
    /// What the provider's tools know, by its name: `region`, `endpoint`, `access_key_id`, `secret_access_key`, `allow_http`, … What is not
    /// said here is taken from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`), as those tools do.
    pub options: Vec<(String, String)>,
    /// Certificates in PEM that a server's may be signed by, beside the system's.
    pub roots: Option<Vec<u8>>,
}

impl std::fmt::Debug for ObjectStorageOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ObjectStorageOptions").field("options", &names).finish_non_exhaustive()
    }
}

/// The provider's builder with what was given, as far as each name is one of its own.
macro_rules! build {
    ($builder:ty, $key:ty, $given:expr) => {{
        let connector = Connector { certificates: $given.certificates()? };
        let mut builder =
            <$builder>::from_env().with_url(&$given.url).with_retry(no_retry()).with_http_connector(connector);
        for (name, value) in &$given.options {
            builder = builder.with_config(key::<$key>(name)?, value);
        }
        let incomplete =
            |_| Error::argument("options", "not enough, or a value that is wrong", "what the provider needs");
        Arc::new(builder.build().map_err(incomplete)?)
    }};
}

impl ObjectStorageOptions {
    pub(super) fn open(&self) -> Result<(Arc<dyn ObjectStore>, Path)> {
        // What is wrong with a URL may be its password.
        let wrong = || Error::argument("url", "another text", SCHEMES);
        let url = Url::parse(&self.url).map_err(|_| wrong())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong());
        }
        let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|_| wrong())?;
        // Whoever has chosen another one for the process before keeps it.
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
        let failed = |reason: &str| Error::Certificates { what: "the roots", reason: reason.to_owned() };
        match Certificate::from_pem_bundle(pem) {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            Ok(_) => Err(failed("there is no certificate")),
            Err(_) => Err(failed("they are no PEM")),
        }
    }
}

/// The key of an option. One that would have servers believed without their certificates has none.
fn key<K: FromStr>(name: &str) -> Result<K> {
    let lower = name.to_ascii_lowercase();
    let known = if lower == ClientConfigKey::AllowInvalidCertificates.as_ref() { None } else { lower.parse().ok() };
    known.ok_or_else(|| Error::argument("options", name, "names that the provider's tools know"))
}

/// Once, and not again: retries lie outside.
fn no_retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::from_secs(60) }
}

/// Makes the client's connections, with certificates of the caller's.
#[derive(Debug)]
struct Connector {
    certificates: Vec<Certificate>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let with =
            |options: ClientOptions, certificate: &Certificate| options.with_root_certificate(certificate.clone());
        ReqwestConnector::default().connect(&self.certificates.iter().fold(options.clone(), with))
    }
}
