//! What the generator of operations is to generate.

/// What to generate. Start from one of the constructors and change fields.
#[derive(Clone, Debug)]
pub struct Knobs {
    /// How often operations on names come up, against the others.
    pub names: u32,
    /// How often attributes are changed and asked for.
    pub attrs: u32,
    /// How often files are opened and data are read and written.
    pub data: u32,
    /// How often extended attributes come up.
    pub xattrs: u32,
    /// How often locks come up.
    pub locks: u32,
    /// How often fsync, barrier and sync come up.
    pub durability: u32,
    /// Users other than root.
    pub users: bool,
    /// A user that was checked above the contract.
    pub checked: bool,
    /// Names and modes that no kernel passes on.
    pub bad_arguments: bool,
    /// Directory scans with changes in between.
    pub scan_changes: bool,
    /// Several attributes changed at once.
    pub set_many: bool,
    /// DIRECT and the SYNC flags.
    pub direct: bool,
    /// Offsets and sizes reach up to this many bytes; most stay far lower.
    pub size_max: u64,
    /// Longest write and read, bytes.
    pub len_max: u32,
    /// Longest range given to fallocate and copy_range, bytes.
    pub range_max: u64,
    /// Sizes and offsets around the largest file, to see `TooLarge`.
    pub file_size_limit: bool,
    /// Longest value of an extended attribute, bytes.
    pub xattr_len_max: u32,
}

impl Knobs {
    /// Everything the contract has, up to its limits.
    pub fn everything() -> Knobs {
        Knobs {
            names: 10,
            attrs: 5,
            data: 10,
            xattrs: 3,
            locks: 3,
            durability: 1,
            users: true,
            checked: true,
            bad_arguments: true,
            scan_changes: true,
            set_many: true,
            direct: true,
            size_max: 1 << 44,
            len_max: 20_000,
            range_max: 1 << 20,
            file_size_limit: true,
            xattr_len_max: 70_000,
        }
    }

    /// What the host's file system can do as well: see `host`.
    pub fn host() -> Knobs {
        Knobs {
            checked: false,
            bad_arguments: false,
            set_many: false,
            size_max: 1 << 43,
            file_size_limit: false,
            xattr_len_max: 500,
            ..Knobs::everything()
        }
    }

    /// Mostly names: creating, renaming, removing.
    pub fn name_heavy() -> Knobs {
        Knobs { names: 30, data: 3, ..Knobs::everything() }
    }

    /// Mostly data, with writes beyond 2 MiB.
    pub fn data_heavy() -> Knobs {
        Knobs {
            names: 3,
            attrs: 1,
            data: 30,
            xattrs: 1,
            locks: 0,
            durability: 4,
            users: false,
            checked: false,
            len_max: 3 << 20,
            range_max: 16 << 20,
            ..Knobs::everything()
        }
    }

    /// What a crash test wants: changes and many barriers, by root.
    pub fn crash() -> Knobs {
        Knobs {
            durability: 8,
            locks: 0,
            users: false,
            checked: false,
            bad_arguments: false,
            file_size_limit: false,
            len_max: 100_000,
            ..Knobs::everything()
        }
    }
}
