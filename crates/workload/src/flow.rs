//! One thread of the run: it repeats the personality's flow until the deadline, an error or an interruption.
//!
//! Latency is measured as Filebench does: from before the first call of an operation to after its last; choosing the file and
//! preparing the buffer are outside.

use crate::board::{Board, Call};
use crate::calls::{self, Errno, Fd, now_ns};
use crate::personality::{KINDS, Kind, Parameters};
use crate::plan::{File, Plan};
use crate::random::Random;
use crate::states::{States, Want};
use crate::tally::Tally;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// What all threads of a process work with.
pub struct Stage<'a> {
    /// The files.
    pub plan: &'a Plan,
    /// Which of them exist and are in use.
    pub states: &'a States,
    /// The shared memory.
    pub board: &'a Board,
    /// The personality's parameters.
    pub parameters: &'a Parameters,
    /// Bytes to write, at least twice as long as the longest single write.
    pub data: &'a [u8],
}

/// A failed call, and the file it was for.
pub struct Failure<'a>(pub Call, pub &'a File, pub Errno);

/// Names the call and the file of an error.
pub fn at<'a>(call: Call, file: &'a File) -> impl FnOnce(Errno) -> Failure<'a> {
    move |errno| Failure(call, file, errno)
}

/// A thread.
pub struct Flow<'a> {
    stage: &'a Stage<'a>,
    random: Random,
    buffer: Vec<u8>,
    open: Option<(Fd, usize)>,
    log: Option<Fd>,
    tallies: [Tally; KINDS],
    rounds: u64,
}

/// When a flow ends, besides errors and interruptions.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Nanoseconds after the start.
    pub after_ns: u64,
    /// Rounds of this thread.
    pub rounds: u64,
}

impl<'a> Flow<'a> {
    /// A thread with its own random numbers.
    pub fn new(stage: &'a Stage<'a>, random: Random) -> Flow<'a> {
        let buffer = vec![0; stage.parameters.io_size as usize];
        Flow { stage, random, buffer, open: None, log: None, tallies: Default::default(), rounds: 0 }
    }

    /// Waits for the start, repeats `flow` and adds what was done to the board.
    pub fn run(mut self, flow: &[Kind], until: Until) {
        let board = self.stage.board;
        if !board.wait_for_start() {
            return;
        }
        let deadline = board.start_ns.load(Acquire).saturating_add(until.after_ns);
        let result = self.repeat(flow, until.rounds, deadline);
        board.end_ns.fetch_max(now_ns(), Relaxed);
        if let Err(Failure(call, file, errno)) = result {
            board.fail(call, &file.path, errno);
        }
        for (shared, tally) in board.tallies.iter().zip(&self.tallies) {
            shared.add(tally);
        }
        board.rounds.fetch_add(self.rounds, Relaxed);
        if let Some((_, i)) = &self.open {
            self.stage.states.closed(*i);
        }
    }

    fn repeat(&mut self, flow: &[Kind], rounds: u64, deadline: u64) -> Result<(), Failure<'a>> {
        while self.rounds < rounds {
            for &kind in flow {
                if self.stage.board.stopped() || now_ns() >= deadline {
                    return Ok(());
                }
                self.operation(kind)?;
            }
            self.rounds += 1;
        }
        Ok(())
    }

    /// Does one operation and counts it.
    fn operation(&mut self, kind: Kind) -> Result<(), Failure<'a>> {
        let (start, end, bytes) = match kind {
            Kind::Create => self.open(Want::Create, libc::O_CREAT)?,
            Kind::Open => self.open(Want::Use, 0)?,
            Kind::Close => self.close()?,
            Kind::WriteWhole => self.write_whole()?,
            Kind::ReadWhole => self.read_whole()?,
            Kind::Append => {
                let (fd, i) = opened(&self.open);
                append(fd, &self.stage.plan.files[i], self.stage, &mut self.random)?
            }
            Kind::AppendLog => self.append_log()?,
            Kind::Fsync => {
                let (fd, i) = opened(&self.open);
                timed(|| fd.fsync().map(|()| 0)).map_err(at(Call::Fsync, &self.stage.plan.files[i]))?
            }
            Kind::Delete => {
                let (i, file) = self.pick(Want::Delete)?;
                let done = timed(|| calls::unlink(&file.path).map(|()| 0));
                match &done {
                    Ok(_) => self.stage.states.deleted(i),
                    Err(_) => self.stage.states.untouched(i),
                }
                done.map_err(at(Call::Unlink, file))?
            }
            Kind::Stat => {
                let (i, file) = self.pick(Want::Use)?;
                let done = timed(|| calls::stat(&file.path).map(|_| 0));
                self.stage.states.untouched(i);
                done.map_err(at(Call::Stat, file))?
            }
        };
        self.tallies[kind as usize].add(end - start, bytes);
        Ok(())
    }

    fn pick(&self, want: Want) -> Result<(usize, &'a File), Failure<'a>> {
        let files = &self.stage.plan.files;
        match self.stage.states.pick(want) {
            Some(i) => Ok((i, &files[i])),
            None => Err(Failure(Call::Pick, &files[0], Errno(libc::EBUSY))),
        }
    }

    fn open(&mut self, want: Want, flags: libc::c_int) -> Result<Timed, Failure<'a>> {
        assert!(self.open.is_none(), "the flow opens a second file");
        let (i, file) = self.pick(want)?;
        let access = if self.stage.parameters.read_only { libc::O_RDONLY } else { libc::O_RDWR };
        let mut fd = None;
        let done = timed(|| {
            fd = Some(Fd::open(&file.path, access | flags)?);
            Ok(0)
        });
        match fd {
            Some(fd) => {
                self.stage.states.opened(i);
                self.open = Some((fd, i));
            }
            None => self.stage.states.untouched(i),
        }
        done.map_err(at(Call::Open, file))
    }

    fn close(&mut self) -> Result<Timed, Failure<'a>> {
        let (fd, i) = self.open.take().expect("the flow closes what it opened");
        let done = timed(|| fd.close().map(|()| 0));
        self.stage.states.closed(i);
        done.map_err(at(Call::Close, &self.stage.plan.files[i]))
    }

    fn write_whole(&mut self) -> Result<Timed, Failure<'a>> {
        let (fd, i) = opened(&self.open);
        let file = &self.stage.plan.files[i];
        let (data, io_size) = (self.stage.data, self.stage.parameters.io_size);
        timed(|| write_file(fd, file.size, io_size, data)).map_err(at(Call::Write, file))
    }

    fn read_whole(&mut self) -> Result<Timed, Failure<'a>> {
        let (fd, i) = opened(&self.open);
        let file = &self.stage.plan.files[i];
        let start = now_ns();
        fd.seek(0, libc::SEEK_SET).map_err(at(Call::Seek, file))?;
        let mut bytes = 0;
        loop {
            match fd.read(&mut self.buffer).map_err(at(Call::Read, file))? {
                0 => return Ok((start, now_ns(), bytes)),
                n => bytes += n as u64,
            }
        }
    }

    fn append_log(&mut self) -> Result<Timed, Failure<'a>> {
        let file = self.stage.plan.log.as_ref().expect("a personality that appends to a log has one");
        if self.log.is_none() {
            self.log = Some(Fd::open(&file.path, libc::O_RDWR).map_err(at(Call::Open, file))?);
        }
        let fd = self.log.as_ref().expect("it was opened above");
        append(fd, file, self.stage, &mut self.random)
    }
}

/// Start, end and bytes of an operation.
type Timed = (u64, u64, u64);

fn timed(work: impl FnOnce() -> Result<u64, Errno>) -> Result<Timed, Errno> {
    let start = now_ns();
    let bytes = work()?;
    Ok((start, now_ns(), bytes))
}

fn opened(open: &Option<(Fd, usize)>) -> (&Fd, usize) {
    let (fd, i) = open.as_ref().expect("the flow opens a file before it works on it");
    (fd, *i)
}

/// Appends a random number of bytes below the parameter; 0 bytes are an operation without a call, as in Filebench.
fn append<'a>(fd: &Fd, file: &'a File, stage: &Stage<'a>, random: &mut Random) -> Result<Timed, Failure<'a>> {
    let n = random.below(stage.parameters.append_size) as usize;
    let offset = random.below((stage.data.len() - n) as u64 + 1) as usize;
    let start = now_ns();
    if n > 0 {
        fd.seek(0, libc::SEEK_END).map_err(at(Call::Seek, file))?;
        fd.write_all(&stage.data[offset..offset + n]).map_err(at(Call::Write, file))?;
    }
    Ok((start, now_ns(), n as u64))
}

/// Writes `size` bytes from the position of `fd`, `io_size` at a time; returns how many.
pub fn write_file(fd: &Fd, size: u64, io_size: u64, data: &[u8]) -> Result<u64, Errno> {
    let mut left = size;
    while left > 0 {
        let n = left.min(io_size);
        fd.write_all(&data[..n as usize])?;
        left -= n;
    }
    Ok(size)
}
