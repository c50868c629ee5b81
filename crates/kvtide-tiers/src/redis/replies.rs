//! Converts the answers of servers to values or faults. Of their messages, only known codes are passed on.

use std::error::Error;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::fault::{Fault, FaultKind};
use crate::guard::Replies;

/// The error codes of servers that have a meaning here. Any other code is `Garbage`.
const CODES: [(&str, FaultKind); 16] = [
    ("NOAUTH", FaultKind::Refused),
    ("WRONGPASS", FaultKind::Refused),
    ("NOPERM", FaultKind::Refused),
    ("OOM", FaultKind::Full),
    ("MISCONF", FaultKind::Full),
    ("READONLY", FaultKind::ReadOnly),
    ("LOADING", FaultKind::Unreachable),
    ("MASTERDOWN", FaultKind::Unreachable),
    ("CLUSTERDOWN", FaultKind::Unreachable),
    ("TRYAGAIN", FaultKind::Unreachable),
    ("MOVED", FaultKind::Unreachable),
    ("ASK", FaultKind::Unreachable),
    ("NOREPLICAS", FaultKind::Full),
    ("BUSY", FaultKind::Unreachable),
    ("CROSSSLOT", FaultKind::Garbage),
    ("ERR", FaultKind::Garbage),
];

fn of_code(code: &str) -> Fault {
    match CODES.iter().find(|(name, _)| *name == code) {
        Some((name, kind)) => Fault::new(*kind, *name),
        None => Fault::new(FaultKind::Garbage, "an error without a code that is known"),
    }
}

/// Returns the system's error inside a client's error, if there is one.
fn io_kind(error: &RedisError) -> Option<std::io::ErrorKind> {
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
}

/// Converts a client's error to a fault.
pub(super) fn fault(error: &RedisError) -> Fault {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Fault::new(FaultKind::Refused, "WRONGPASS"),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Fault::new(FaultKind::Garbage, "an invalid answer"),
        ErrorKind::Io if error.is_timeout() => Fault::new(FaultKind::TimedOut, "no answer in time"),
        ErrorKind::Io => match io_kind(error) {
            Some(kind) => Fault::new(FaultKind::Unreachable, kind.to_string()),
            None => Fault::new(FaultKind::Unreachable, "the connection broke"),
        },
        _ => match error.code() {
            Some(code) => of_code(code),
            None => Fault::new(FaultKind::Unreachable, "the connection broke"),
        },
    }
}

/// Converts an error in answer to a greeting to a fault. A server with too many connections, or without this database,
/// answers `ERR`.
pub(super) fn fault_of_greeting(error: &RedisError) -> Fault {
    match fault(error) {
        Fault { kind: FaultKind::Garbage, about } if about == "ERR" => {
            Fault::new(FaultKind::Unreachable, "the server refused the connection or the database")
        }
        fault => fault,
    }
}

/// Converts a command's error to a fault.
pub(super) fn fault_of_command(error: &ServerError) -> Option<Fault> {
    match error.code() {
        // A key of another type belongs to another program.
        "WRONGTYPE" => None,
        code => Some(of_code(code)),
    }
}

/// Converts faults of writes: a user who may read but not write is accepted all the same.
pub(super) fn of_writes<T>(read: Result<Replies<T>, Fault>) -> Result<Replies<T>, Fault> {
    let milder = |fault: Fault| match fault.about.as_str() {
        "NOPERM" => Fault { kind: FaultKind::ReadOnly, ..fault },
        _ => fault,
    };
    match read {
        Ok(replies) => Ok(Replies { fault: replies.fault.map(milder), ..replies }),
        Err(fault) => Err(milder(fault)),
    }
}

/// True if a command was sent to a node that does not have the slot.
pub(super) fn is_moved(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK" | "CLUSTERDOWN"))
}

/// Returns the approximate length of an answer in bytes, rounded down.
pub(super) fn bytes(value: &Value) -> u64 {
    match value {
        Value::BulkString(value) => 5 + value.len() as u64,
        Value::Array(values) => 4 + values.iter().map(bytes).sum::<u64>(),
        _ => 4,
    }
}

/// Reads each answer. If all of them are errors, or one makes no sense, the first fault is that of the batch.
pub(super) fn read<T: Default>(
    values: Vec<Result<Value, Fault>>,
    one: impl Fn(Value) -> Option<T>,
) -> Result<Replies<T>, Fault> {
    let mut replies = Replies { each: Vec::with_capacity(values.len()), fault: None };
    let mut is_answered = values.is_empty();
    for value in values {
        let read = match value {
            Ok(Value::ServerError(error)) => fault_of_command(&error).map_or(Ok(T::default()), Err),
            Ok(value) => match one(value) {
                Some(read) => Ok(read),
                None => return Err(Fault::new(FaultKind::Garbage, "an answer of another type")),
            },
            Err(fault) => Err(fault),
        };
        match read {
            Ok(read) => {
                is_answered = true;
                replies.each.push(read);
            }
            Err(fault) => {
                replies.each.push(T::default());
                replies.fault.get_or_insert(fault);
            }
        }
    }
    match replies.fault {
        Some(fault) if !is_answered => Err(fault),
        _ => Ok(replies),
    }
}
