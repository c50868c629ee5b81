//! Work on a thread of Node's pool, while JavaScript continues.

use napi::bindgen_prelude::{AsyncTask, ToNapiValue, TypeName};
use napi::{Env, Result, Task};

use super::handle::{catch, guard};
use super::refusal::Outcome;

/// Work for a thread of Node's pool, and the conversion of its result for JavaScript.
pub struct PoolTask<T, V> {
    work: Option<Box<dyn FnOnce() -> Outcome<T> + Send>>,
    show: fn(T) -> V,
}

impl<T, V> PoolTask<T, V> {
    pub fn of(work: impl FnOnce() -> Outcome<T> + Send + 'static, show: fn(T) -> V) -> AsyncTask<Self>
    where
        Self: Task,
    {
        AsyncTask::new(PoolTask { work: Some(Box::new(work)), show })
    }
}

impl<T: Send + 'static, V: ToNapiValue + TypeName> Task for PoolTask<T, V> {
    type Output = Outcome<T>;
    type JsValue = V;

    fn compute(&mut self) -> Result<Self::Output> {
        let work = self.work.take();
        Ok(match work {
            Some(work) => catch(work).unwrap_or_else(Err),
            None => Err(kvtide_tensor::Error::Aborted.into()),
        })
    }

    fn resolve(&mut self, env: Env, done: Self::Output) -> Result<V> {
        guard(&env, || Ok((self.show)(done?)))
    }
}
