//! Bounds the answers of a server, because the client library reserves what `Content-Length` claims and reads refusals
//! to their end.
//!
//! Here, no body claims a length, so memory follows the bytes that were received. A body that is not a value ends with
//! a fault after 64 KiB: the reason of a refusal, the answer to a write, a token of the provider. A value's length is
//! checked before its body is read.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame};
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

/// The most bytes of a body that is not a value.
const BYTES_MAX: usize = 64 << 10;

/// A client whose answers are bounded.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) HttpClient);

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Bounded {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answer<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let may_be_value = request.method() == "GET";
            let answer = self.0.execute(request).await?;
            let left = if may_be_value && answer.status().is_success() { usize::MAX } else { BYTES_MAX };
            Ok(answer.map(|body| HttpResponseBody::new(Unclaimed { body, left })))
        })
    }
}

/// A body with at most this many bytes left, whose length is not announced.
struct Unclaimed {
    body: HttpResponseBody,
    left: usize,
}

/// A body exceeded its bound.
#[derive(Debug, thiserror::Error)]
#[error("an answer of more than {BYTES_MAX} bytes that is not a value")]
struct TooLong;

impl fmt::Debug for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unclaimed").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Body for Unclaimed {
    type Data = <HttpResponseBody as Body>::Data;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, |data| data.len());
            match self.left.checked_sub(bytes) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, TooLong)))),
            }
        }
        Poll::Ready(frame)
    }
}
