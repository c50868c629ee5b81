//! Invalid options are refused before any connection is made, and passwords are never printed.

use std::time::Duration;

use kvtide_core::Code;
use kvtide_tiers::{Redis, RedisOptions};

fn refusal(options: RedisOptions) -> String {
    let error = Redis::new(&options).expect_err("it cannot work");
    assert!(matches!(error.code(), Code::InvalidArgument | Code::IoError));
    let shown = format!("{error} {error:?} {:?} {options:?}", error.details());
    assert!(!shown.contains("s3cret"), "{shown}");
    error.details()[0].value.to_string()
}

fn urls(urls: &[&str]) -> RedisOptions {
    RedisOptions { urls: urls.iter().map(|&url| url.to_owned()).collect(), ..RedisOptions::default() }
}

#[test]
fn what_cannot_work_is_refused_by_its_name() {
    for wrong in [
        "",
        "s3cret",
        "http://:s3cret@localhost",
        "redis://:s3cret@localhost:99999",
        "redis://:s3cret@localhost/x",
        "rediss://:s3cret@localhost/#insecure",
        "unix:///tmp/s3cret",
    ] {
        assert_eq!(refusal(urls(&[wrong])), "url", "{wrong}");
    }
    assert_eq!(refusal(urls(&[])), "url");
    assert_eq!(refusal(urls(&["redis://a", "redis://b"])), "url");
    let cluster = |list: &[&str]| RedisOptions { is_cluster: true, ..urls(list) };
    assert_eq!(refusal(cluster(&["redis://a", "rediss://b"])), "url");
    assert_eq!(refusal(cluster(&["redis://:s3cret@a", "redis://:s3cret2@b"])), "url");
    assert_eq!(refusal(cluster(&["redis://a/3"])), "database");
    let base = RedisOptions::default;
    assert_eq!(refusal(RedisOptions { connections: 0, ..base() }), "connections");
    assert_eq!(refusal(RedisOptions { connections: 65, ..base() }), "connections");
    assert_eq!(refusal(RedisOptions { ttl: Some(Duration::ZERO), ..base() }), "ttl");
    assert_eq!(refusal(RedisOptions { connect_timeout: Duration::ZERO, ..base() }), "connectTimeout");
    let roots = Some(b"no certificate".to_vec());
    assert_eq!(refusal(RedisOptions { roots, ..urls(&["rediss://:s3cret@a"]) }), "read");
}

#[test]
fn passwords_are_shown_nowhere() {
    let options = RedisOptions { password: Some("s3cret".to_owned()), ..urls(&["redis://user:s3cret@localhost/2"]) };
    let store = Redis::new(&options).unwrap();
    let shown = format!("{options:?} {store:?} {store:#?}");
    assert!(!shown.contains("s3cret"), "{shown}");
}
