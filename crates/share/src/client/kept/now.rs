//! What is known here, for callers that would rather have no future: without a message, and without anything else that takes time.

use super::Target;
use crate::client::Remote;
use crate::client::directories::Found;
use fs::{Attr, Handle, Ino};

impl Remote {
    /// As `FileSystem::walk`, without the attributes: what a path of at least one name leads to. It is known longer than they are.
    #[inline]
    pub fn target_now(&self, base: Ino, path: &[u8]) -> Option<Target> {
        let kept = self.kept();
        match kept.follow(base, path) {
            Some((_, target)) => target.filter(|_| kept.alive()),
            None => match self.find_here(base, path) {
                Found::There(target) => Some(target),
                _ => None,
            },
        }
    }

    /// As `FileSystem::walk`: what `f` says of the attributes. It must not take long.
    #[inline]
    pub fn look_at<T>(&self, base: Ino, path: &[u8], f: impl FnOnce(&Attr) -> T) -> Option<T> {
        let kept = self.kept();
        match kept.follow(base, path) {
            Some((ino, _)) => kept.look(ino, f),
            None => match self.find_here(base, path) {
                Found::There(target) => kept.known(target.ino).map(|attr| f(&attr)),
                _ => None,
            },
        }
    }

    /// As `FileSystem::getattr`: what `f` says of the attributes. It must not take long.
    #[inline]
    pub fn look_at_inode<T>(
        &self,
        ino: Ino,
        handle: Option<Handle>,
        f: impl FnOnce(&Attr) -> T,
    ) -> Option<T> {
        let ino = handle.map_or(Some(ino), |handle| self.inode(handle))?;
        self.kept().look(ino, f)
    }

    /// The size of an open file. It is known longer than the other attributes are.
    #[inline]
    pub fn size_now(&self, handle: Handle) -> Option<u64> {
        let file = self.file(handle)?;
        self.kept().size(file.ino).or_else(|| self.own_size(&file))
    }
}
