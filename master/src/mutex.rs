//! A mutex that stays usable after a panic. A panic ends only the work of one job or request, so the value stays in use
//! as the panic has left it.

use std::sync::{self, MutexGuard, PoisonError};

/// A mutex whose lock cannot fail.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex with this value.
    pub fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until nobody else has locked the mutex, and locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
