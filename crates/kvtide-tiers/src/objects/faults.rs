//! Converts the errors of object stores to faults. Of their messages, only a status is passed on.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use crate::fault::{Fault, FaultKind};

/// The messages of providers for a missing bucket, as opposed to a missing value.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"];

/// Converts an error to a fault; `None` if it says that the value does not exist.
pub(super) fn of_error(error: &object_store::Error) -> Option<Fault> {
    use object_store::Error;
    Some(match error {
        Error::NotFound { source, .. } => {
            let text = source.to_string();
            if !NO_BUCKET.iter().any(|name| text.contains(name)) {
                return None;
            }
            Fault::new(FaultKind::Refused, "no such bucket")
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            Fault::new(FaultKind::Refused, "no permission")
        }
        Error::Generic { source, .. } => of_source(source.as_ref()),
        Error::NotSupported { .. } | Error::NotImplemented { .. } => Fault::new(FaultKind::ReadOnly, "not supported"),
        _ => Fault::new(FaultKind::Garbage, "an invalid answer"),
    })
}

/// The text before a status in the client's message, because the client's type for it is private.
const STATUS: &str = "non-2xx status code: ";

/// Converts the cause of an error to a fault.
fn of_source(error: &(dyn Error + 'static)) -> Fault {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return of_http(error);
        }
        next = error.source();
    }
    let text = error.to_string();
    if text.contains("redirect without LOCATION") {
        return Fault::new(FaultKind::Refused, "another region or endpoint");
    }
    let status = text.split_once(STATUS).and_then(|(_, rest)| rest.get(..3)?.parse().ok());
    status.map_or_else(|| Fault::new(FaultKind::Garbage, "an invalid answer"), of_status)
}

fn of_http(error: &HttpError) -> Fault {
    match error.kind() {
        HttpErrorKind::Connect => Fault::new(FaultKind::Unreachable, "no connection"),
        HttpErrorKind::Timeout => Fault::new(FaultKind::TimedOut, "no answer in time"),
        _ => Fault::new(FaultKind::Unreachable, "the connection broke"),
    }
}

fn of_status(status: u16) -> Fault {
    let kind = match status {
        408 | 429 | 500..=506 | 508.. => FaultKind::Unreachable,
        507 => FaultKind::Full,
        413 => FaultKind::TooLarge,
        _ => FaultKind::Refused,
    };
    Fault::new(kind, format!("status {status}"))
}
