//! Starts moto, a server that speaks S3. Its program is taken from `KVTIDE_MOTO`, or found by its name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use kvtide_tiers::{GuardOptions, Guarded, ObjectStorage, ObjectStorageOptions};

use super::{Process, free_port, runtime, skipped, wait_for};

pub struct S3Server {
    pub port: u16,
    process: Option<Process>,
}

fn program() -> String {
    std::env::var("KVTIDE_MOTO").unwrap_or_else(|_| "moto_server".to_owned())
}

impl S3Server {
    pub fn start() -> Option<Self> {
        if Command::new(program()).arg("--help").output().is_err() {
            skipped("moto_server is not installed (pip install 'moto[server]', KVTIDE_MOTO)");
            return None;
        }
        let mut server = S3Server { port: free_port(), process: None };
        server.restart();
        Some(server)
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the server again on its port, with an empty bucket.
    pub fn restart(&mut self) {
        self.kill();
        let child = Command::new(program())
            .args(["-H", "127.0.0.1", "-p", &self.port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.process = Some(Process(child));
        wait_for(self.port);
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = "PUT /bucket HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
}

pub fn options(bucket: &str, port: u16) -> ObjectStorageOptions {
    let pairs = [
        ("endpoint", format!("http://127.0.0.1:{port}")),
        ("allow_http", "true".to_owned()),
        ("region", "us-east-1".to_owned()),
        ("access_key_id", "an-access-key".to_owned()),
        ("secret_access_key", "a-very-secret-key".to_owned()),
    ];
    ObjectStorageOptions {
        url: format!("s3://{bucket}/some/prefix"),
        options: pairs.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        roots: None,
    }
}

pub fn store(bucket: &str, port: u16) -> Guarded<ObjectStorage> {
    let guard: GuardOptions = super::redis_server::brisk();
    ObjectStorage::guarded(&options(bucket, port), guard, runtime(), None).unwrap()
}
