//! An address in ZeroMQ's notation: `tcp://host:port`. The host `*` binds all addresses of the machine.

use std::fmt;
use std::net::SocketAddr;

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    /// Parses an address. The error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let address = text.strip_prefix("tcp://").ok_or("expected tcp://host:port")?;
        let (host, port) = address.rsplit_once(':').ok_or("expected a port after the host")?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(|of: char| of.is_whitespace() || of == '/') {
            return Err("expected a host before the port");
        }
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or("expected a port of at most 65535")?;
        Ok(Endpoint { host: host.to_owned(), port })
    }

    /// The host to bind.
    pub(crate) fn bind_host(&self) -> &str {
        if self.host == "*" { "0.0.0.0" } else { &self.host }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Endpoint { host: address.ip().to_string(), port: address.port() }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint { host, port } = self;
        if host.contains(':') { write!(to, "tcp://[{host}]:{port}") } else { write!(to, "tcp://{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_zeromq_writes_and_refuses_the_rest() {
        for (text, host, port, again) in [
            ("tcp://127.0.0.1:5557", "127.0.0.1", 5557, "tcp://127.0.0.1:5557"),
            ("tcp://*:0", "*", 0, "tcp://*:0"),
            ("tcp://worker-3.pods:65535", "worker-3.pods", 65535, "tcp://worker-3.pods:65535"),
            ("tcp://[::1]:1", "::1", 1, "tcp://[::1]:1"),
            ("tcp://::1:1", "::1", 1, "tcp://[::1]:1"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.to_string().as_str()), (host, port, again));
        }
        for text in [
            "",
            "nowhere",
            "tcp://",
            "tcp://h",
            "tcp://:1",
            "tcp://h:",
            "tcp://h:65536",
            "tcp://h:+1",
            "tcp://h:1x",
            "ipc:///tmp/x",
            "tcp://a b:1",
            "tcp://h/p:1",
        ] {
            assert!(Endpoint::parse(text).is_err(), "{text}");
        }
    }
}
