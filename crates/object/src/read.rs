//! Reading a file: what is in memory, what is in its object, and zeros.

use crate::change::Place;
use crate::core::Core;
use crate::error;
use crate::handles::Open;
use crate::store::{Store, StoreError};
use fs::{Error, Ino, Pages, Result};
use std::ops::Range;
use std::sync::Arc;

/// A part of what is read.
enum Part {
    Memory(Vec<u8>),
    Zeros(usize),
    Object(Range<u64>),
}

impl<S: Store> Core<S> {
    /// As [`fs::FileSystem::read_pages`], of an open file: what comes from its object stays where it arrived.
    pub async fn read(self: &Arc<Self>, open: &Open, offset: u64, len: usize) -> Result<Pages> {
        let file = &open.file;
        'again: loop {
            let (parts, base, sent) = {
                let state = file.state.lock();
                if state.replaced != open.replaced {
                    return Err(Error::Stale);
                }
                let end = state.change.size().min(offset.saturating_add(len as u64));
                if end <= offset {
                    return Ok(Pages::default());
                }
                let (mut parts, mut sent) = (Vec::new(), false);
                for (range, place) in state.change.places(offset..end) {
                    let n = (range.end - range.start) as usize;
                    match place {
                        Place::Memory => {
                            let mut bytes = vec![0; n];
                            state.change.copy(range, &mut bytes);
                            parts.push(Part::Memory(bytes));
                        }
                        Place::Hole => parts.push(Part::Zeros(n)),
                        Place::Old => parts.push(Part::Object(range)),
                        Place::Sent => sent = true,
                    }
                }
                (parts, (state.base.clone(), state.base_size), sent)
            };
            if sent {
                // What has left can be read when it is an object.
                if file.state.lock().gone {
                    return Err(Error::Stale);
                }
                self.spawn_commit(file).await?;
                continue;
            }
            let mut pages = Pages::default();
            for part in parts {
                let range = match part {
                    Part::Memory(bytes) => {
                        pages.push_owned(bytes);
                        continue;
                    }
                    Part::Zeros(n) => {
                        pages.push_zeros(n);
                        continue;
                    }
                    Part::Object(range) => range,
                };
                let (Some(etag), size) = &base else { return Err(Error::Stale) };
                let key = self.tree.lock().key(file.ino);
                let key = match key {
                    Ok(key) if !file.state.lock().gone => key,
                    // Removed: its bytes went with it.
                    _ => return Err(Error::Stale),
                };
                match self.read_object(&open.window, (&key, etag, *size), range).await {
                    Ok(bytes) => bytes.into_iter().for_each(|bytes| pages.push_owned(bytes)),
                    Err(StoreError::Precondition | StoreError::NotFound) => {
                        // We may have replaced or moved it ourselves meanwhile, or be about to hear that we have: whoever does so holds these.
                        let names = self.namespace.read().await;
                        let turn = file.turn.read().await;
                        if file.state.lock().tried.is_some() {
                            drop((names, turn));
                            self.spawn_commit(file).await?;
                            continue 'again;
                        }
                        let same_key = self.tree.lock().key(file.ino).is_ok_and(|now| now == key);
                        if same_key && file.state.lock().base.as_ref() == Some(etag) {
                            self.is_replaced(file.ino);
                            return Err(Error::Stale);
                        }
                        continue 'again;
                    }
                    Err(e) => return Err(error::of(&key, e)),
                }
            }
            return Ok(pages);
        }
    }

    /// What is known of an object is of one that is there no longer: who opens it again asks the store, however lately it was asked.
    fn is_replaced(&self, ino: Ino) {
        if let Ok(inode) = self.tree.lock().get_mut(ino)
            && !inode.is_dirty()
        {
            inode.about = None;
        }
    }
}
