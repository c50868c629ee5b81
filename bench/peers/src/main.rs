//! Runs the same work on kvtide, on other caches, and on bare memory, in one process and in turn.
//!
//! ```text
//! kvtide-peers --list                     the ids of the report's workloads, each with the kind of memory to run on
//! kvtide-peers --list all                 the same, with workloads that are measured only by name
//! kvtide-peers --measure <id> <rounds>    every round of its lanes as JSON
//! kvtide-peers --paged-step <steps>       rounds of steps on request, for the TypeScript suite
//! ```
//!
//! `npm run bench` starts it once for each workload, so that no workload reuses memory of another.
#![deny(unsafe_code)]

mod allocation;
mod bare;
mod large;
mod multiply_add;
mod paged_step;
mod sum;
mod tokens;
mod workloads;

use kvtide_bench::Result;
use workloads::{ALL, NAMED, Workload};

fn measured(id: &str, rounds: &str) -> Result<String> {
    let rounds = rounds.parse::<std::num::NonZeroUsize>()?.get();
    let found = ALL
        .iter()
        .chain(NAMED)
        .find(|workload| workload.id == id)
        .ok_or_else(|| format!("no workload is called {id}"))?;
    Ok(serde_json::to_string(&(found.run)(rounds)?)?)
}

fn list(workloads: &[Workload]) {
    workloads.iter().for_each(|Workload { id, memory, .. }| println!("{id} {memory}"));
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => list(ALL),
        ["--list", "all"] => [ALL, NAMED].into_iter().for_each(list),
        ["--measure", id, rounds] => println!("{}", measured(id, rounds)?),
        ["--paged-step", steps] => {
            paged_step::serve(steps.parse()?, std::io::stdin().lock(), std::io::stdout().lock())?
        }
        _ => return Err("expected --list [all], --measure <id> <rounds> or --paged-step <steps>".into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_workloads_share_an_id_and_each_has_a_memory() {
        let all = || ALL.iter().chain(NAMED);
        let ids: std::collections::BTreeSet<&str> = all().map(|workload| workload.id).collect();
        assert_eq!(ids.len(), ALL.len() + NAMED.len());
        assert!(all().all(|workload| ["new", "reused"].contains(&workload.memory)));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for (id, rounds) in [("nothing", "1"), ("memcpy", "0"), ("memcpy", "many")] {
            assert!(measured(id, rounds).is_err(), "{id} {rounds}");
        }
    }
}
