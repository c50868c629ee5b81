//! Starts redis-server, single or as a Cluster of three.

use std::process::{Command, Stdio};

use kvtide_tiers::{GateOptions, GuardOptions, Guarded, Redis, RedisOptions};

use super::{Folder, Process, eventually, free_port, is_installed, runtime, skipped, wait_for};

pub struct RedisServer {
    pub port: u16,
    pub process: Option<Process>,
    pub folder: Folder,
    arguments: Vec<String>,
}

impl RedisServer {
    /// Starts a server with these options; `None` if redis-server is not installed.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        if !is_installed("redis-server") {
            skipped("redis-server is not installed");
            return None;
        }
        let arguments = arguments.iter().map(|&text| text.to_owned()).collect();
        let mut server = RedisServer { port: free_port(), process: None, folder: Folder::new(), arguments };
        server.restart();
        Some(server)
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server again on its port, empty.
    pub fn restart(&mut self) {
        self.kill();
        let port = self.port.to_string();
        let port_option = if self.arguments.iter().any(|argument| argument == "--tls-port") { "0" } else { &port };
        let child = Command::new("redis-server")
            .args(["--port", port_option, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&self.folder.0)
            .args(self.arguments.iter().map(|argument| argument.replace("PORT", &port)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(Process(child));
        wait_for(self.port);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn signal(&self, name: &str) {
        self.process.as_ref().unwrap().signal(name);
    }

    /// Returns the output of `redis-cli`.
    pub fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, arguments)
    }
}

pub fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Starts a Cluster of three nodes.
pub fn cluster() -> Option<Vec<RedisServer>> {
    let servers: Option<Vec<RedisServer>> = (0..3)
        .map(|_| {
            let bus = free_port().to_string();
            let own = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
            RedisServer::start(&[&own[..], &["--cluster-require-full-coverage", "no"]].concat())
        })
        .collect();
    let servers = servers?;
    let mut create = vec!["--cluster".to_owned(), "create".to_owned()];
    create.extend(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)));
    create.push("--cluster-yes".to_owned());
    let output = Command::new("redis-cli").args(&create).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    eventually("the cluster is complete", || {
        servers.iter().all(|server| server.cli(&["cluster", "info"]).contains("cluster_state:ok"))
    });
    Some(servers)
}

/// Returns options with short back-offs.
pub fn brisk() -> GuardOptions {
    let gate = GateOptions {
        backoff_min: std::time::Duration::from_millis(20),
        backoff_max: std::time::Duration::from_millis(100),
        ..GateOptions::default()
    };
    GuardOptions { gate, pause: std::time::Duration::from_millis(5), ..GuardOptions::default() }
}

pub fn options(url: &str) -> RedisOptions {
    RedisOptions { urls: vec![url.to_owned()], ..RedisOptions::default() }
}

pub fn store(url: &str) -> Guarded<Redis> {
    Redis::guarded(&options(url), brisk(), runtime(), None).unwrap()
}
