//! The four personalities: their parameters and their flows of operations.
//!
//! The numbers of files, mean sizes and threads are those of table 7 of the UHSFS paper, which are Filebench's defaults; what the
//! table leaves out (width of a directory, size of an append, size of one read) is from `workloads/*.f` of Filebench 1.5.
//! The flows are those of the same files. A step that Filebench does not count (`opslimit` without a limit) is left out.

use clap::ValueEnum;

/// A kind of operation: one flowop of Filebench, counted as one operation however many calls it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Opens a file of the set that does not exist, making it.
    Create,
    /// Writes as many bytes as the plan gives the open file.
    WriteWhole,
    /// Seeks to the end of the open file and writes a random number of bytes.
    Append,
    /// The same on the log, which each thread opens once and keeps open.
    AppendLog,
    /// Opens an existing file.
    Open,
    /// Reads the open file from its start to its end.
    ReadWhole,
    /// Closes the open file.
    Close,
    /// Unlinks an existing file that nobody has open.
    Delete,
    /// Looks at an existing file by its path.
    Stat,
    /// Makes the open file durable.
    Fsync,
}

/// How many kinds there are.
pub const KINDS: usize = 10;

impl Kind {
    /// Every kind, in the order of reports; `ALL[k as usize] == k`.
    pub const ALL: [Kind; KINDS] = [
        Kind::Create,
        Kind::WriteWhole,
        Kind::Append,
        Kind::AppendLog,
        Kind::Open,
        Kind::ReadWhole,
        Kind::Close,
        Kind::Delete,
        Kind::Stat,
        Kind::Fsync,
    ];

    /// Filebench's name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "createfile",
            Kind::WriteWhole => "writewholefile",
            Kind::Append => "appendfilerand",
            Kind::AppendLog => "appendlog",
            Kind::Open => "openfile",
            Kind::ReadWhole => "readwholefile",
            Kind::Close => "closefile",
            Kind::Delete => "deletefile",
            Kind::Stat => "statfile",
            Kind::Fsync => "fsync",
        }
    }

    /// Whether its bytes are bytes read; those of the others are bytes written.
    pub fn reads(self) -> bool {
        self == Kind::ReadWhole
    }
}

/// One of Filebench's four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Personality {
    /// Files made, written, appended to, read, deleted and looked at.
    Fileserver,
    /// A mail server: small files in one directory, each change made durable.
    Varmail,
    /// Many files read, one log appended to.
    Webserver,
    /// A cache of web pages: a file replaced, five read.
    Webproxy,
}

/// What a personality is made of. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Files of the set, existing or not.
    pub files: u32,
    /// Mean size of a file; sizes are gamma-distributed with shape 1.5.
    pub mean_file_size: u64,
    /// Mean number of entries of a directory.
    pub mean_dir_width: u64,
    /// Appends have a length that is uniform below this.
    pub append_size: u64,
    /// Whole files are read and written in calls of this length.
    pub io_size: u64,
    /// Threads in all processes together.
    pub threads: u32,
    /// How many of a hundred files exist at the start.
    pub existing_percent: u32,
    /// Whether files are opened for reading only.
    pub read_only: bool,
    /// Whether there is a log beside the set.
    pub log: bool,
}

use Kind::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, Stat, WriteWhole};

const FILESERVER: &[Kind] =
    &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat];

const VARMAIL: &[Kind] =
    &[Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open, ReadWhole, Close];

const WEBSERVER: &[Kind] = &[
    Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
    ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
    ReadWhole, Close, Open, ReadWhole, Close, AppendLog,
];

const WEBPROXY: &[Kind] = &[
    Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
    Open, ReadWhole, Close, Open, ReadWhole, Close,
];

impl Personality {
    /// Every personality, in the order of table 7.
    pub const ALL: [Personality; 4] =
        [Personality::Fileserver, Personality::Varmail, Personality::Webserver, Personality::Webproxy];

    /// Filebench's name.
    pub fn name(self) -> &'static str {
        match self {
            Personality::Fileserver => "fileserver",
            Personality::Varmail => "varmail",
            Personality::Webserver => "webserver",
            Personality::Webproxy => "webproxy",
        }
    }

    /// The parameters of table 7, and Filebench's for the rest.
    pub fn parameters(self) -> Parameters {
        let common = Parameters {
            files: 1000,
            mean_file_size: 16 << 10,
            mean_dir_width: 1_000_000,
            append_size: 16 << 10,
            io_size: 1 << 20,
            threads: 16,
            existing_percent: 80,
            read_only: false,
            log: false,
        };
        match self {
            Personality::Fileserver => Parameters {
                files: 10_000,
                mean_file_size: 128 << 10,
                mean_dir_width: 20,
                threads: 50,
                ..common
            },
            Personality::Varmail => common,
            Personality::Webserver => Parameters {
                mean_dir_width: 20,
                threads: 100,
                existing_percent: 100,
                read_only: true,
                log: true,
                ..common
            },
            Personality::Webproxy => Parameters { files: 10_000, threads: 100, ..common },
        }
    }

    /// The operations of one round, which each thread repeats.
    pub fn flow(self) -> &'static [Kind] {
        match self {
            Personality::Fileserver => FILESERVER,
            Personality::Varmail => VARMAIL,
            Personality::Webserver => WEBSERVER,
            Personality::Webproxy => WEBPROXY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_stand_at_their_numbers() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i);
        }
    }

    #[test]
    fn table_7() {
        let rows = Personality::ALL.map(|p| {
            let p = p.parameters();
            (p.files, p.mean_file_size >> 10, p.threads)
        });
        assert_eq!(rows, [(10_000, 128, 50), (1000, 16, 16), (1000, 16, 100), (10_000, 16, 100)]);
    }

    /// A flow never works on a file that is not open, never opens a second one, and creates as often as it deletes.
    #[test]
    fn flows_are_sound() {
        for personality in Personality::ALL {
            let mut open = false;
            let mut balance = 0;
            for &kind in personality.flow() {
                match kind {
                    Create | Open => assert!(!std::mem::replace(&mut open, true), "{personality:?}"),
                    Close => assert!(std::mem::replace(&mut open, false), "{personality:?}"),
                    WriteWhole | Append | ReadWhole | Fsync => assert!(open, "{personality:?}"),
                    Delete | Stat => assert!(!open),
                    AppendLog => assert!(personality.parameters().log),
                }
                balance += i32::from(kind == Create) - i32::from(kind == Delete);
            }
            assert!(!open && balance == 0, "{personality:?}");
        }
        assert_eq!(Personality::ALL.map(|p| p.flow().len()), [11, 13, 31, 19]);
    }
}
