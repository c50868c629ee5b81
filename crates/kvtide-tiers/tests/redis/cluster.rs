//! A Cluster of three nodes: keys are sent to the nodes of their slots, even after slots have moved.

use kvtide_tiers::{Guarded, Redis, RedisOptions, Store};

use crate::support::redis_server::{RedisServer, brisk, cluster};
use crate::support::{entries, events, eventually, in_time, keys, later, runtime, soon, value};

fn store(servers: &[RedisServer]) -> Guarded<Redis> {
    let urls = servers.iter().take(2).map(RedisServer::url).collect();
    let options = RedisOptions { urls, is_cluster: true, ..RedisOptions::default() };
    Redis::guarded(&options, brisk(), runtime(), None).unwrap()
}

fn values(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|index| value(index, 5000)).collect()
}

/// Returns the number of values found, after checking each.
fn found(store: &Guarded<Redis>, count: usize) -> usize {
    let found = store.get(&keys(count), 5000, later());
    assert!(found.iter().zip(values(count)).all(|(found, value)| found.as_ref().is_none_or(|found| *found == value)));
    found.iter().flatten().count()
}

#[test]
fn keys_lie_on_all_nodes_and_are_found_where_their_slots_have_moved() {
    let Some(servers) = cluster() else { return };
    let store = store(&servers);
    assert_eq!(store.put(&entries(&keys(500), &values(500)), later()), 500);
    assert_eq!(found(&store, 500), 500);
    let sizes: Vec<usize> = servers.iter().map(|server| server.cli(&["dbsize"]).parse().unwrap()).collect();
    assert!(sizes.iter().sum::<usize>() == 500 && sizes.iter().all(|size| *size > 100), "{sizes:?}");

    // Moves some slots of the first node to the second one.
    let id = |server: &RedisServer| server.cli(&["cluster", "myid"]);
    let moved = std::process::Command::new("redis-cli")
        .args(["--cluster", "reshard", &format!("127.0.0.1:{}", servers[0].port), "--cluster-yes"])
        .args(["--cluster-from", &id(&servers[0]), "--cluster-to", &id(&servers[1]), "--cluster-slots", "1000"])
        .output()
        .unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stdout));
    assert_eq!(found(&store, 500), 500);
    store.remove(&keys(500), later());
    assert_eq!(store.has(&keys(500), later()), vec![false; 500]);
    assert_eq!(events(&store), [""; 0]);
}

#[test]
fn a_node_that_is_gone_takes_its_keys_and_no_others() {
    let Some(mut servers) = cluster() else { return };
    let store = store(&servers);
    assert_eq!(store.put(&entries(&keys(300), &values(300)), later()), 300);
    servers[2].kill();
    let left = found(&store, 300);
    assert!((100..250).contains(&left), "{left}");
    servers.iter().take(2).for_each(|server| server.signal("STOP"));
    for _ in 0..6 {
        let deadline = soon();
        in_time(deadline, || assert_eq!(store.get(&keys(300), 5000, deadline), vec![None; 300]));
    }
    assert_eq!(events(&store).len(), 1);
    servers.iter().take(2).for_each(|server| server.signal("CONT"));
    eventually("the others are back", || found(&store, 300) == left);
    assert_eq!(events(&store), ["+"]);
}
