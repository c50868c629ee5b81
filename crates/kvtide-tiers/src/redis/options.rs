//! The options of Redis. They may be printed, because the output contains no passwords, including those in URLs.

use std::time::Duration;

use kvtide_files::{Error, Result};
use redis::{ConnectionAddr, IntoConnectionInfo};

use super::link::{Access, Address};
use crate::tls;

/// The most connections to one server.
const CONNECTIONS_MAX: usize = 64;

/// The location and the settings of Redis.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://` or, with TLS, `rediss://`, with user, password and database number if there are any. For a Cluster,
    /// some of its nodes.
    pub urls: Vec<String>,
    /// True for a Cluster.
    pub is_cluster: bool,
    /// The user, unless the URL has one.
    pub username: Option<String>,
    /// The password, unless the URL has one.
    pub password: Option<String>,
    /// The number of the database, unless the URL has one. A Cluster has only database 0.
    pub database: Option<u32>,
    /// The start of every key.
    pub prefix: String,
    /// The lifetime of values; without it, the server keeps them until it needs the memory.
    pub ttl: Option<Duration>,
    /// The number of connections to each server.
    pub connections: usize,
    /// The timeout for making a connection.
    pub connect_timeout: Duration,
    /// Certificates in PEM, one of which must have signed a server's certificate, in place of the system's.
    pub roots: Option<Vec<u8>>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        RedisOptions {
            urls: vec!["redis://127.0.0.1:6379".to_owned()],
            is_cluster: false,
            username: None,
            password: None,
            database: None,
            prefix: "kvtide:".to_owned(),
            ttl: None,
            connections: 2,
            connect_timeout: Duration::from_secs(2),
            roots: None,
        }
    }
}

impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisOptions")
            .field("is_cluster", &self.is_cluster)
            .field("prefix", &self.prefix)
            .field("ttl", &self.ttl)
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// Options after they were checked.
pub(super) struct Parsed {
    pub(super) addresses: Vec<Address>,
    pub(super) access: Access,
    pub(super) ttl_millis: Option<u64>,
}

impl RedisOptions {
    pub(super) fn parse(&self) -> Result<Parsed> {
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(Error::argument("connections", self.connections.to_string(), "1 to 64"));
        }
        if self.connect_timeout.is_zero() {
            return Err(Error::argument("connectTimeout", "0", "more than 0"));
        }
        let count = self.urls.len();
        if count == 0 || (count > 1 && !self.is_cluster) {
            return Err(Error::argument("url", format!("{count} URLs"), "one URL, or several nodes of a Cluster"));
        }
        let ttl_millis = match self.ttl {
            None => None,
            Some(ttl) => match u64::try_from(ttl.as_millis()) {
                Ok(millis) if (1..=i64::MAX as u64 / 2).contains(&millis) => Some(millis),
                _ => return Err(Error::argument("ttl", format!("{ttl:?}"), "at least a millisecond")),
            },
        };
        let servers = self.urls.iter().map(|url| server(url)).collect::<Result<Vec<_>>>()?;
        let (first, is_tls) = (&servers[0].info, servers[0].is_tls);
        if servers.iter().any(|server| server.is_tls != is_tls || server.login() != servers[0].login()) {
            return Err(Error::argument("url", "several URLs", "nodes with one scheme, user, password and database"));
        }
        let mut info = first.clone();
        if let Some(username) = self.username.as_ref().filter(|_| first.username().is_none()) {
            info = info.set_username(username);
        }
        if let Some(password) = self.password.as_ref().filter(|_| first.password().is_none()) {
            info = info.set_password(password);
        }
        if let Some(database) = self.database.filter(|_| first.db() == 0) {
            info = info.set_db(database.into());
        }
        if self.is_cluster && info.db() != 0 {
            return Err(Error::argument("database", info.db().to_string(), "0: a Cluster has no other"));
        }
        let tls = if is_tls { Some(tls::client_config(self.roots.as_deref())?) } else { None };
        let access = Access { info: info.set_skip_set_lib_name(), tls, timeout: self.connect_timeout };
        Ok(Parsed { addresses: servers.into_iter().map(|server| server.address).collect(), access, ttl_millis })
    }
}

/// The parts of a URL.
struct Server {
    address: Address,
    is_tls: bool,
    info: redis::RedisConnectionInfo,
}

impl Server {
    fn login(&self) -> (Option<&str>, Option<&str>, i64) {
        (self.info.username(), self.info.password(), self.info.db())
    }
}

fn server(url: &str) -> Result<Server> {
    // The wrong part of a URL may be its password.
    let wrong =
        || Error::argument("url", "another text", "redis://host:port/database or rediss://…, checked certificates");
    let secure = url.starts_with("rediss:") || url.starts_with("valkeys:");
    // The client has no TLS of its own: this crate makes its connections.
    let plain = match url.split_once(':') {
        Some(("rediss" | "valkeys", rest)) => format!("redis:{rest}"),
        _ => url.to_owned(),
    };
    if plain.contains('#') {
        return Err(wrong());
    }
    let parsed = plain.as_str().into_connection_info().map_err(|_| wrong())?;
    match parsed.addr() {
        ConnectionAddr::Tcp(host, port) if !host.is_empty() => Ok(Server {
            address: Address { host: host.clone(), port: *port },
            is_tls: secure,
            info: parsed.redis_settings().clone(),
        }),
        _ => Err(wrong()),
    }
}
