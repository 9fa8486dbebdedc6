//! Calls of who has a lease on a directory, or on files that are about to be made (see [`crate::leases`]).

use super::{Change, Watched};
use crate::contract::FileSystem;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::types::{Attr, MadeAs, OpenFlags, Promise};
use format::Ino;

impl<F: FileSystem> Watched<F> {
    /// Makes what was promised, in a directory under a lease of who calls. As [`FileSystem::create_promised`].
    pub async fn make_lent(
        &self,
        cred: &Cred,
        (parent, name): (Ino, &[u8]),
        made: MadeAs,
        promise: Promise,
    ) -> Result<Attr> {
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, None).after(turn);
        let attr = self.fs.create_promised(cred, parent, name, made, promise).await;
        if let (Ok(attr), Some(flags)) = (&attr, made.open) {
            self.opened(promise.handle, attr.ino, flags).taken();
        }
        // No door keeps anything of this directory, or it would not be lent.
        telling.among_us(&attr, None);
        attr
    }

    /// As create, with EXCLUSIVE, of the file that was promised, which is taken when it is made: whoever lends that file to who calls knows before that there is
    /// one.
    pub async fn create_known(
        &self,
        cred: &Cred,
        (parent, name): (Ino, &[u8]),
        (perm, flags): (u16, OpenFlags),
        promised: &mut Option<Promise>,
    ) -> Result<Attr> {
        let promise = promised.ok_or(Error::Invalid("a file that was made"))?;
        let _entering = self.entering(parent).await?;
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let mut telling = self.telling_name(parent, name, None).after(turn);
        let made = MadeAs { perm, open: Some(flags), time: None };
        let made = self.fs.create_promised(cred, parent, name, made, promise).await;
        let made = made.map(|attr| {
            *promised = None;
            (attr, self.opened(promise.handle, attr.ino, flags))
        });
        telling.unless_refused(&made);
        telling.end().await;
        let (attr, opened) = made?;
        opened.taken();
        Ok(attr)
    }

    /// As unlink, of a file that was made in a directory under a lease by who calls: what no other door can keep anything of.
    /// Says which inode the name led to.
    pub async fn unlink_lent(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let victim = self.victim(parent, name).await;
        let _declared = self.declared(victim).await?;
        let telling = self.telling_name(parent, name, victim).after(turn);
        let done = self.fs.unlink(cred, parent, name).await;
        // Pages of it may be in somebody's memory.
        telling.among_us(&done, victim.map(|ino| Change::Attr { ino }));
        done.map(|()| victim)
    }

    /// As rmdir, of a directory that was made in one under a lease by who calls. Says which inode the name led to. `Stale`: somebody else has a lease on it, so it was not
    /// made so; he is not waited for, as he may wait for this. Or another one came to the name meanwhile, of which that is not known.
    pub async fn rmdir_lent(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let made = self.victim(parent, name).await;
        let _changing = made.map(|ino| self.changing(ino));
        if made.is_some_and(|ino| self.lends_on(ino)) {
            return Err(Error::Stale);
        }
        let turn = self.hub.names.take(&[(parent, name)]).await;
        let victim = self.victim(parent, name).await;
        if victim.is_some() && victim != made {
            return Err(Error::Stale);
        }
        let telling = self.telling_name(parent, name, victim).after(turn);
        let done = self.fs.rmdir(cred, parent, name).await;
        telling.among_us(&done, victim.map(|ino| Change::Attr { ino }));
        done.map(|()| victim)
    }

    /// As rmdir; says which inode the name led to, if there is anybody to whom that matters.
    pub async fn rmdir_told(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let _entering = self.entering(parent).await?;
        let (turn, _leaving, victim, _) = self.leaving(&[(parent, name)]).await;
        let telling = self.telling_name(parent, name, victim).after(turn);
        telling.over_name(self.fs.rmdir(cred, parent, name)).await.map(|()| victim)
    }
}
