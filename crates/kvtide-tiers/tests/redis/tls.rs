//! TLS: a server is trusted only if its certificate is signed by the given roots.

use std::process::Command;

use kvtide_tiers::{Redis, RedisOptions, Store};

use crate::support::redis_server::{RedisServer, brisk, options};
use crate::support::{Folder, events, is_installed, later, runtime, skipped};

/// Makes a root, and a certificate for 127.0.0.1 that it signs; `None` if openssl is not installed.
fn certificates() -> Option<Folder> {
    if Command::new("openssl").arg("version").output().is_err() || !is_installed("redis-server") {
        skipped("openssl or redis-server is not installed");
        return None;
    }
    let folder = Folder::new();
    std::fs::write(folder.file("extensions"), "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    let run = |line: &str| {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(&folder.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    for root in ["root", "other"] {
        run(&format!("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={root} -keyout {root}.key -out {root}.pem"));
    }
    run("req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr");
    run(
        "x509 -req -in server.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 -extfile extensions -out server.pem",
    );
    Some(folder)
}

#[test]
fn a_server_is_believed_by_its_certificate() {
    let Some(folder) = certificates() else { return };
    let files = ["server.pem", "server.key", "root.pem"].map(|name| folder.file(name));
    let own =
        ["--tls-port", "PORT", "--tls-auth-clients", "no", "--tls-cert-file", &files[0], "--tls-key-file", &files[1]];
    let Some(server) = RedisServer::start(&[&own[..], &["--tls-ca-cert-file", &files[2]]].concat()) else { return };
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let with = |roots: Option<&str>| {
        let roots = roots.map(|name| std::fs::read(folder.file(name)).unwrap());
        let options = RedisOptions { roots, ..options(&url) };
        Redis::guarded(&options, brisk(), runtime(), None).unwrap()
    };
    let store = with(Some("root.pem"));
    let value = vec![5; 300_000];
    assert_eq!(store.put(&[("a".to_owned(), &value)], later()), 1);
    assert_eq!(store.get(&["a".to_owned()], 300_000, later()), [Some(value)]);
    for wrong in [Some("other.pem"), None] {
        let store = with(wrong);
        assert_eq!(store.get(&["a".to_owned()], 300_000, later()), [None]);
        assert_eq!(events(&store), ["-refused"], "{:?}", store.health());
    }
    // A server without TLS is not trusted either.
    let plain = RedisServer::start(&[]).unwrap();
    let roots = Some(std::fs::read(folder.file("root.pem")).unwrap());
    let options = RedisOptions { roots, ..options(&format!("rediss://127.0.0.1:{}", plain.port)) };
    let store = Redis::guarded(&options, brisk(), runtime(), None).unwrap();
    assert_eq!(store.get(&["a".to_owned()], 10, later()), [None]);
    assert_eq!(events(&store).len(), 1);
}
