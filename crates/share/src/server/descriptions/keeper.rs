//! The thread that asks the kernel which descriptions are there still, and closes what nobody has any more.

use super::Descriptions;
use crate::server::rights::Rights;
use fs::FileSystem;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use std::{io, mem};

/// The thread that asks the kernel. Sleeps while no handle is kept.
pub(crate) struct Keeper {
    all: Arc<Descriptions>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread. When it ends it closes what is kept, but with `leaves_nameless` files without a name, which others may come for; and leaves them the right to what was left to them.
    pub fn start<F: FileSystem>(
        fs: fs::Watched<F>,
        (all, rights): (Arc<Descriptions>, Arc<Rights>),
        leaves_nameless: bool,
    ) -> io::Result<Keeper> {
        let table = all.clone();
        let thread = std::thread::Builder::new().name("freehold-flock".into()).spawn(move || {
            let close = |handle| {
                if let Err(e) = fs.block_on(fs.release(handle)) {
                    tracing::warn!("closing a file whose lock outlived its session: {e}");
                }
            };
            loop {
                {
                    let mut table = all.table.lock();
                    while !table.stopping {
                        let due = table.watched.values().map(|w| w.due).chain(rights.until());
                        let Some(due) = due.min() else {
                            all.news.wait(&mut table);
                            continue;
                        };
                        if all.news.wait_until(&mut table, due).timed_out() {
                            break;
                        }
                    }
                    if table.stopping {
                        break;
                    }
                }
                all.look(close);
                if rights.until().is_some_and(|until| until <= Instant::now()) {
                    rights.end(&fs, false);
                }
            }
            rights.end(&fs, leaves_nameless);
            let table = mem::take(&mut *all.table.lock());
            table.watched.values().flat_map(|w| &w.waiting).for_each(|one| one.one_less());
            for ((_, at), entry) in table.entries.into_iter().filter(|(_, entry)| entry.kept) {
                let attr = fs.block_on(fs.getattr(entry.ino, Some(entry.handle)));
                let attr = attr.ok().filter(|_| leaves_nameless && entry.memory.has(at));
                if let (Some(attr), Some((cred, access))) = (&attr, &entry.left) {
                    rights.leave(cred, (entry.ino, attr.generation), *access);
                }
                if attr.is_none_or(|attr| attr.nlink > 0) {
                    close(entry.handle);
                }
            }
        })?;
        Ok(Keeper { all: table, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.all.table.lock().stopping = true;
        self.all.news.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
