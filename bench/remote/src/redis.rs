//! The hit path: many values in one call, beside redis-benchmark over as many connections; and many small keys in one call or one by one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvtide_bench::{Amount, Lane, Result, Role, Took, measure as rounds};
use kvtide_remote::{GuardOptions, Guarded, Redis, RedisOptions, Store};

use crate::server::Server;
use crate::show;

const VALUES: usize = 1000;
const SMALL: usize = 10_000;
const ONE_BY_ONE: usize = 1000;
const THREADS: usize = 3;

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn store(
    server: &Server,
    connections: usize,
    batch_bytes: usize,
    runtime: &tokio::runtime::Handle,
) -> Result<Guarded<Redis>> {
    let urls = vec![format!("redis://127.0.0.1:{}", server.port)];
    let options = RedisOptions { urls, connections, ..RedisOptions::default() };
    Ok(Redis::guarded(&options, GuardOptions { batch_bytes, ..GuardOptions::default() }, runtime.clone(), None)?)
}

pub fn measure(server: &Server) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for kilobytes in [64, 256] {
        values(server, kilobytes << 10, runtime.handle())?;
    }
    small_keys(server, runtime.handle())
}

fn values(server: &Server, bytes: usize, runtime: &tokio::runtime::Handle) -> Result<()> {
    let keys: Vec<String> = (0..VALUES).map(|index| format!("{bytes}-{index}")).collect();
    let value = vec![7u8; bytes];
    let entries: Vec<(String, &[u8])> = keys.iter().map(|key| (key.clone(), &value[..])).collect();
    let filled = store(server, 2, 256 << 10, runtime)?.put_many(&entries, later());
    server.prepare(bytes)?;
    let amount = Amount::moved(bytes * VALUES, 0);
    let mut lanes = Vec::new();
    for (connections, pipeline) in [(2, 16), (2, 4), (50, 1)] {
        let name = format!("redis-benchmark -c {connections} -P {pipeline}");
        let lane = Lane::new(Role::Limit, name, move |_| {
            let took = server.benchmark(bytes, VALUES, connections, pipeline)?.as_nanos() as f64 * VALUES as f64;
            Ok(Took { device: took, host: took })
        });
        lanes.push(lane.of(amount));
    }
    for (connections, batch) in [(2, 256 << 10), (2, 1 << 20), (2, 4 << 20), (4, 256 << 10)] {
        let store = store(server, connections, batch, runtime)?;
        let keys = &keys;
        let lane = Lane::making(
            Role::Ours,
            format!("get_many, {connections} connections, batches of {} KiB", batch >> 10),
            1,
            move || {
                let found = store.get_many(keys, bytes, later());
                if found.iter().flatten().count() < filled {
                    return Err("a value is missing".into());
                }
                Ok(found)
            },
        );
        lanes.push(lane.of(amount));
    }
    for connections in [2, 4] {
        let store = store(server, connections, 256 << 10, runtime)?;
        let name = format!("as tiers do, {connections} connections: 8 MiB or 32 a call, {THREADS} threads");
        let keys = &keys;
        lanes.push(Lane::making(Role::Ours, name, 1, move || streamed(&store, keys, bytes, filled)).of(amount));
    }
    show(&format!("{filled} values of {} KiB", bytes >> 10), &rounds(lanes, 15)?);
    Ok(())
}

/// Asks for some values at a time from each thread, and lets go of them before the next ones, as tiers do.
fn streamed(store: &Guarded<Redis>, keys: &[String], bytes: usize, filled: usize) -> Result<()> {
    let calls: Vec<&[String]> = keys.chunks(((8 << 20) / bytes).clamp(1, 32)).collect();
    let (next, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(keys) = calls.get(next.fetch_add(1, Ordering::Relaxed)) {
                    found.fetch_add(store.get_many(keys, bytes, later()).iter().flatten().count(), Ordering::Relaxed);
                }
            });
        }
    });
    if found.into_inner() < filled { Err("a value is missing".into()) } else { Ok(()) }
}

fn small_keys(server: &Server, runtime: &tokio::runtime::Handle) -> Result<()> {
    let keys: Vec<String> = (0..SMALL).map(|index| format!("small-{index}")).collect();
    let entries: Vec<(String, &[u8])> = keys.iter().map(|key| (key.clone(), &b"sixteen bytes ok"[..])).collect();
    let store = store(server, 2, 256 << 10, runtime)?;
    let there = store.put_many(&entries, later());
    let (store, keys) = (&store, &keys);
    let one_call = Lane::making(Role::Ours, format!("{there} small values in one call"), 1, move || {
        let found = store.get_many(keys, 64, later());
        if found.iter().any(Option::is_none) { Err("a value is missing".into()) } else { Ok(found) }
    });
    let has = Lane::making(Role::Ours, "has_many of them", 1, move || Ok(store.has_many(keys, later())));
    let one_by_one = Lane::new(Role::Baseline, "one call each", move |_| {
        let start = Instant::now();
        keys[..ONE_BY_ONE].iter().for_each(|key| _ = store.get_many(std::slice::from_ref(key), 64, later()));
        let took = start.elapsed().as_nanos() as f64 * SMALL as f64 / ONE_BY_ONE as f64;
        Ok(Took { device: took, host: took })
    });
    show("small keys", &rounds(vec![one_by_one, one_call, has], 15)?);
    Ok(())
}
