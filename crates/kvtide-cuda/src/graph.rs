//! Graphs: launches that are recorded once and run again, with nothing of the host in between.
//!
//! ```text
//! stream.capture(work)?    work runs once as it is, then once more while its launches are recorded: those do not run
//! graph.replay()?          enqueues all of them
//! ```
//!
//! What changes from replay to replay lies in the device's memory: addresses, grids and numbers are those of the capture. On the
//! CPU that stands in for a GPU, a replay goes through the list of launches.

use std::sync::Arc;

use crate::error::Result;
use crate::recording::{Launches, Recording};
use crate::stream::Stream;

/// Launches that can be run any number of times, in the order of their stream.
///
/// Spans that they were given have to stay where they are: whoever captures keeps their memory as long as the graph.
pub struct Graph {
    launches: Launches,
    stream: Stream,
    /// Memory that the launches use beside their spans.
    _recording: Arc<Recording>,
}

impl Graph {
    /// Enqueues all launches once more.
    pub fn replay(&self) -> Result<()> {
        let _pass = self.stream.enter();
        self.enqueue()?;
        self.stream.settle("a replay of a graph")
    }

    fn enqueue(&self) -> Result<()> {
        match &self.launches {
            #[cfg(feature = "cuda")]
            Launches::Gpu(graph) => graph.launch(),
            #[cfg(feature = "emulate")]
            Launches::Emulated(enqueued) => enqueued.iter().try_for_each(crate::recording::Enqueued::run),
            #[cfg(not(any(feature = "cuda", feature = "emulate")))]
            _ => unreachable!("a graph in a build without a stream"),
        }
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graph")
    }
}

impl Stream {
    /// Runs `work` once as it is, which loads kernels and takes what memory they need, then once more to record it. It has to
    /// launch the same both times.
    ///
    /// While it records, other threads that use the device wait: `work` must not wait for them. Tensors that were there before stay
    /// until it has ended. Refused to a thread that holds a [`Pass`](crate::Pass) of the stream.
    pub fn capture<E: From<crate::Error>>(
        &self,
        mut work: impl FnMut(&Stream) -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        let recording = Arc::new(Recording::default());
        let stream = self.recording(&recording);
        work(&stream)?;
        self.synchronize()?;
        recording.begin();
        let launches = stream.record(|| work(&stream))?;
        Ok(Graph { launches, stream, _recording: recording })
    }
}
