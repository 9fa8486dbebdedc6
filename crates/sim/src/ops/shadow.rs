//! What the generator knows: a model that executes what is generated, and the slots as they are after it.

use super::execute::{State, execute};
use super::*;
use crate::driver::{Driver, Ticking};
use crate::model::Model;
use fs::{FileType, Ino, OpenFlags};

pub struct Shadow {
    driver: Ticking,
    model: Model,
    state: State,
    /// Flags of what is open in each handle slot; the inode; whether it is a directory.
    opens: Vec<Option<Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    flags: OpenFlags,
    ino: Ino,
    directory: bool,
}

impl Default for Shadow {
    fn default() -> Shadow {
        let driver = Ticking::default();
        let model = Model::new(driver.0.clock());
        Shadow { driver, model, state: State::default(), opens: vec![None; HANDLE_SLOTS as usize] }
    }
}

impl Shadow {
    pub fn execute(&mut self, index: usize, op: &Op) {
        self.driver.before_op(index);
        execute(&self.driver, &self.model, &mut self.state, op);
        self.opens = (0..HANDLE_SLOTS)
            .map(|slot| {
                let handle = self.state.open_handle(slot)?;
                let (ino, flags, directory) = self.model.opened(handle)?;
                Some(Known { flags, ino, directory })
            })
            .collect();
    }

    /// Slots that hold inodes of such a kind.
    pub fn nodes(&self, wanted: impl Fn(FileType) -> bool) -> Vec<u8> {
        let kind = |slot: &u8| self.model.kind(self.state.node(*slot));
        (0..NODE_SLOTS).filter(|slot| kind(slot).is_some_and(&wanted)).collect()
    }

    /// Indexes of the names in a directory that lead to inodes of such a kind.
    pub fn names(&self, dir: u8, wanted: impl Fn(FileType) -> bool) -> Vec<u8> {
        let dir = self.state.node(dir);
        let kind = |index: &u8| self.model.kind(self.model.child(dir, &name(*index))?);
        (0..GOOD_NAMES).filter(|index| kind(index).is_some_and(&wanted)).collect()
    }

    /// Indexes of the names in a directory that lead to empty directories.
    pub fn empty_directories(&self, dir: u8) -> Vec<u8> {
        let dir = self.state.node(dir);
        let empty =
            |index: &u8| self.model.child(dir, &name(*index)).is_some_and(|ino| self.model.is_empty(ino));
        (0..GOOD_NAMES).filter(empty).collect()
    }

    pub fn leads_to_directory(&self, dir: u8, name: u8) -> bool {
        self.names(dir, |kind| kind == FileType::Directory).contains(&name)
    }

    /// Slots of handles that are open for what `need` names.
    pub fn handles(&self, directory: bool, need: OpenFlags) -> Vec<u8> {
        let good = |known: &Known| known.directory == directory && known.flags.contains(need);
        (0..HANDLE_SLOTS).filter(|&slot| self.opens[slot as usize].as_ref().is_some_and(good)).collect()
    }

    /// A slot that holds the inode that is open in this handle slot.
    pub fn node_of_handle(&self, handle: u8) -> Option<u8> {
        let known = self.opens[(handle % HANDLE_SLOTS) as usize]?;
        (0..NODE_SLOTS).find(|&slot| self.state.node(slot) == known.ino)
    }

    /// Indexes of the extended attributes that an inode has.
    pub fn xattrs(&self, node: u8) -> Vec<u8> {
        let names = self.model.xattr_names(self.state.node(node));
        (0..XATTRS).filter(|&index| names.contains(&xattr_name(index))).collect()
    }
}
