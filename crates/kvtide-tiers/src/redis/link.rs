//! One connection to a server: made when it is first needed, under a timeout of its own, and dropped when it has
//! failed.
//!
//! All calls that need the connection while it is being made wait for the same attempt. An exchange that is given up
//! half-way drops the connection, because the rest of its answer would mix with the next one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Value};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::metered::{Allowance, Metered};
use super::replies;
use crate::fault::{Fault, FaultKind};

/// The most bytes of greetings and refusals.
const GREETING_BYTES: u64 = 64 << 10;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The settings for connections to servers.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) info: RedisConnectionInfo,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) timeout: Duration,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// An established connection.
#[derive(Clone)]
struct Connected {
    connection: MultiplexedConnection,
    allowance: Arc<Allowance>,
    _driver: Arc<Driver>,
}

/// The task that reads and writes; it ends with the last user of the connection.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Connecting = Shared<BoxFuture<'static, Result<Connected, Fault>>>;

/// A connection to a server, established or not.
pub(super) struct Link {
    address: Address,
    access: Access,
    state: Mutex<Option<(u64, Connecting)>>,
    made: AtomicU64,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(address: Address, access: Access) -> Self {
        Link { address, access, state: Mutex::new(None), made: AtomicU64::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, Option<(u64, Connecting)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection, which may still be being made.
    fn connecting(&self) -> (u64, Connecting) {
        let mut state = self.state();
        let (number, connecting) = state.get_or_insert_with(|| {
            let task = tokio::spawn(connect(self.address.clone(), self.access.clone()));
            let connecting = task.map(|ended| {
                ended.unwrap_or_else(|_| Err(Fault::new(FaultKind::Unreachable, "the attempt to connect failed")))
            });
            (self.made.fetch_add(1, Ordering::Relaxed), connecting.boxed().shared())
        });
        (*number, connecting.clone())
    }

    fn drop_connection(&self, number: u64) {
        let mut state = self.state();
        if state.as_ref().is_some_and(|(present, _)| *present == number) {
            *state = None;
        }
    }

    /// Sends commands, and reads an answer to each, of at most `bytes_max` bytes in all.
    pub(super) async fn exchange(&self, commands: &Pipeline, bytes_max: u64) -> Result<Vec<Value>, Fault> {
        let (number, connecting) = self.connecting();
        let Connected { mut connection, allowance, _driver } = match connecting.await {
            Ok(connected) => connected,
            Err(fault) => {
                self.drop_connection(number);
                return Err(fault);
            }
        };
        let unfinished = Unfinished { link: self, number };
        allowance.add(bytes_max);
        let count = commands.len();
        let answered = connection.send_packed_commands(commands, 0, count).await;
        let values = answered.map_err(|error| match allowance.is_exceeded() {
            true => Fault::new(FaultKind::Garbage, "more than was asked for"),
            false => replies::fault(&error),
        })?;
        if values.len() != count {
            return Err(Fault::new(FaultKind::Garbage, "another number of answers than of commands"));
        }
        allowance.take_back(bytes_max.saturating_sub(values.iter().map(replies::bytes).sum()));
        std::mem::forget(unfinished);
        Ok(values)
    }
}

/// Drops the connection if an exchange fails or is given up.
struct Unfinished<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.link.drop_connection(self.number);
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn connect(address: Address, access: Access) -> Result<Connected, Fault> {
    let timeout = access.timeout;
    tokio::time::timeout(timeout, connect_at_leisure(address, access))
        .await
        .unwrap_or_else(|_| Err(Fault::new(FaultKind::TimedOut, "no connection in time")))
}

async fn connect_at_leisure(Address { host, port }: Address, access: Access) -> Result<Connected, Fault> {
    let unreachable = |error: std::io::Error| Fault::new(FaultKind::Unreachable, error.kind().to_string());
    let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(unreachable)?;
    tcp.set_nodelay(true).map_err(unreachable)?;
    let stream: Box<dyn Stream> = match access.tls {
        None => Box::new(tcp),
        Some(config) => {
            let refused = || Fault::new(FaultKind::Refused, "the host's name is not valid in a certificate");
            let name = ServerName::try_from(host).map_err(|_| refused())?;
            let connected = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await;
            Box::new(connected.map_err(|error| of_tls(&error))?)
        }
    };
    let allowance = Allowance::new(GREETING_BYTES);
    let stream = Metered::new(stream, allowance.clone());
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let made = MultiplexedConnection::new_with_config(&access.info, stream, config).await;
    let (connection, driver) = made.map_err(|error| replies::fault_of_greeting(&error))?;
    let driver = Arc::new(Driver(tokio::spawn(driver).abort_handle()));
    Ok(Connected { connection, allowance, _driver: driver })
}

/// An invalid certificate is a permanent fault.
fn of_tls(error: &std::io::Error) -> Fault {
    match error.get_ref().and_then(|reason| reason.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            Fault::new(FaultKind::Refused, "the server's certificate is not trusted")
        }
        Some(_) => Fault::new(FaultKind::Garbage, "the TLS handshake failed"),
        None => Fault::new(FaultKind::Unreachable, error.kind().to_string()),
    }
}
