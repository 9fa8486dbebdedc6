//! Reading a file: what is in memory, what is in its object, and zeros.

use crate::change::Place;
use crate::core::Core;
use crate::error;
use crate::handles::Open;
use crate::store::{Store, StoreError};
use fs::{Error, Result};
use std::sync::Arc;

impl<S: Store> Core<S> {
    /// As [`fs::FileSystem::read`], of an open file.
    pub async fn read(self: &Arc<Self>, open: &Open, offset: u64, to: &mut [u8]) -> Result<usize> {
        let file = &open.file;
        loop {
            let (n, old, base, sent) = {
                let state = file.state.lock();
                if state.replaced != open.replaced {
                    return Err(Error::Stale);
                }
                let end = state.change.size().min(offset.saturating_add(to.len() as u64));
                if end <= offset {
                    return Ok(0);
                }
                let (mut old, mut sent) = (Vec::new(), false);
                for (range, place) in state.change.places(offset..end) {
                    let out = &mut to[(range.start - offset) as usize..(range.end - offset) as usize];
                    match place {
                        Place::Memory => state.change.copy(range, out),
                        Place::Hole => out.fill(0),
                        Place::Old => old.push(range),
                        Place::Sent => sent = true,
                    }
                }
                ((end - offset) as usize, old, (state.base.clone(), state.base_size), sent)
            };
            if sent {
                // What has left can be read when it is an object.
                if file.state.lock().gone {
                    return Err(Error::Stale);
                }
                self.spawn_commit(file).await?;
                continue;
            }
            if old.is_empty() {
                return Ok(n);
            }
            let (Some(etag), size) = base else { return Err(Error::Stale) };
            let key = self.tree.lock().key(file.ino);
            let key = match key {
                Ok(key) if !file.state.lock().gone => key,
                // Removed: its bytes went with it.
                _ => return Err(Error::Stale),
            };
            let mut done = Ok(());
            for range in old {
                let out = &mut to[(range.start - offset) as usize..(range.end - offset) as usize];
                done = self.read_object(&open.window, (&key, &etag, size), range, out).await;
                if done.is_err() {
                    break;
                }
            }
            match done {
                Ok(()) => return Ok(n),
                Err(StoreError::Precondition | StoreError::NotFound) => {
                    // We may have replaced or moved it ourselves meanwhile.
                    let same_key = self.tree.lock().key(file.ino).is_ok_and(|now| now == key);
                    if same_key && file.state.lock().base.as_ref() == Some(&etag) {
                        return Err(Error::Stale);
                    }
                }
                Err(e) => return Err(error::of(&key, e)),
            }
        }
    }
}
