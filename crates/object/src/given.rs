//! A handle on its way. A program that waits for its open can be killed, and the open goes on without it: see [`Given`]. Tested by
//! crates/freehold/tests/bucket/gone.rs.

use crate::core::Core;
use crate::filesystem::ABORTS_AT_END;
use crate::store::Store;
use fs::Handle;
use std::sync::Arc;
use std::time::Instant;

/// A handle on its way to whoever asked for it. Nobody else knows it: if he has gone, it is closed again.
pub struct Given<S: Store> {
    /// The engine.
    pub core: Arc<Core<S>>,
    /// It; `None`: it is taken.
    pub handle: Option<Handle>,
    /// Its file was made for it.
    pub new: bool,
}

impl<S: Store> Given<S> {
    /// Gives it.
    pub fn taken(mut self) -> Handle {
        self.handle.take().expect("it is taken once")
    }
}

impl<S: Store> Drop for Given<S> {
    fn drop(&mut self) {
        let Some(open) = self.handle.and_then(|handle| self.core.opens.lock().remove(&handle)) else {
            return;
        };
        let (core, new) = (self.core.clone(), self.new);
        self.core.runtime.spawn(async move {
            match new {
                true => core.abandon_file(&open.file, Instant::now() + ABORTS_AT_END).await,
                false => core.put_file(&open.file).await,
            }
        });
    }
}
