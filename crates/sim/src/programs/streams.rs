//! Streams of stdio, listings, whole trees, and other programs that are started.

use super::actor::{Actor, Answer, Place, Stream, Words, check};
use super::data::{is_directory, shown};
use libc::{c_char, c_void};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A call by its name; `None` when it is not one of these.
pub(super) fn by_name(actor: &mut Actor, call: &str, words: &mut Words<'_>) -> Option<Answer> {
    Some(match call {
        "list" => list(&actor.place(words)),
        "fdlist" => fdlist(actor, words),
        "puts" => puts(actor, words),
        "gets" => gets(actor, words),
        "fdopen" => fdopen(actor, words),
        "stream" => stream(actor, words),
        "remove" => {
            let place = actor.place(words);
            // SAFETY: a string that ends with zero.
            check(unsafe { libc::remove(place.path.as_ptr()) }).map(|_| "0".to_owned())
        }
        "tree" => {
            let place = actor.place(words);
            let mut lines = Vec::new();
            tree(Path::new(&*place.path.to_string_lossy()), &mut lines).map(|()| lines.join("; "))
        }
        "shell" => shell(actor, words),
        _ => return None,
    })
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

/// Names and types in order.
fn list(place: &Place) -> Answer {
    // SAFETY: a string that ends with zero.
    entries(unsafe { libc::opendir(place.path.as_ptr()) })
}

/// Through a duplicate of a descriptor, from the beginning.
fn fdlist(actor: &Actor, words: &mut Words<'_>) -> Answer {
    // SAFETY: a descriptor; the stream takes the duplicate over, or it is closed.
    unsafe {
        let own = check(libc::dup(actor.fd(words)))? as i32;
        let dir = libc::fdopendir(own);
        if dir.is_null() {
            let error = io::Error::last_os_error();
            libc::close(own);
            return Err(error);
        }
        libc::rewinddir(dir);
        entries(dir)
    }
}

fn entries(dir: *mut libc::DIR) -> Answer {
    if dir.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    // SAFETY: an open stream, closed at the end; an entry is valid until the next one.
    unsafe {
        *libc::__errno_location() = 0;
        while let Some(entry) = libc::readdir(dir).as_ref() {
            let name = CStr::from_ptr(entry.d_name.as_ptr()).to_string_lossy();
            found.push(format!("{name}:{}", entry.d_type));
        }
        let error = io::Error::last_os_error();
        // Places at the end differ, and others may have the descriptor.
        libc::rewinddir(dir);
        check(libc::closedir(dir))?;
        if error.raw_os_error() != Some(0) {
            return Err(error);
        }
    }
    found.sort();
    Ok(found.join(" "))
}

fn open_stream(place: &Place, mode: &str) -> io::Result<*mut libc::FILE> {
    let mode = c_string(mode);
    // SAFETY: strings that end with zero.
    let stream = unsafe { libc::fopen(place.path.as_ptr(), mode.as_ptr()) };
    if stream.is_null() { Err(io::Error::last_os_error()) } else { Ok(stream) }
}

/// Writes lines, and some of them again after a seek.
fn puts(actor: &Actor, words: &mut Words<'_>) -> Answer {
    let (place, mode, lines, back) = (actor.place(words), words.next(), words.number(), words.number());
    let stream = open_stream(&place, mode)?;
    // SAFETY: an open stream, closed at the end; strings that end with zero.
    unsafe {
        if is_directory(libc::fileno(stream)) {
            libc::fclose(stream);
            return Ok("a directory".to_owned());
        }
        for line in 0..lines {
            libc::fputs(c_string(&format!("line {line} of {lines}\n")).as_ptr(), stream);
        }
        let at = libc::ftell(stream);
        let sought = libc::fseek(stream, -back.min(at), libc::SEEK_END);
        let more = libc::fprintf(stream, c"%d and %s\n".as_ptr(), lines as i32, c"more".as_ptr());
        let flushed = libc::fflush(stream);
        let end = libc::ftell(stream);
        let closed = libc::fclose(stream);
        Ok(format!("{at} {sought} {more} {flushed} {end} {closed}"))
    }
}

/// Reads lines, then goes to an offset, and reads what is left.
fn gets(actor: &Actor, words: &mut Words<'_>) -> Answer {
    let (place, mode, lines, to) = (actor.place(words), words.next(), words.number(), words.number());
    let stream = open_stream(&place, mode)?;
    let mut said = Vec::new();
    // SAFETY: an open stream, closed at the end; buffers with their lengths.
    unsafe {
        let mut line = [0 as c_char; 100];
        for _ in 0..lines {
            if libc::fgets(line.as_mut_ptr(), 100, stream).is_null() {
                break;
            }
            said.extend(CStr::from_ptr(line.as_ptr()).to_bytes());
        }
        let back = libc::ungetc(libc::fgetc(stream), stream);
        let at = libc::ftell(stream);
        let sought = libc::fseek(stream, to, libc::SEEK_SET);
        let mut rest = vec![0u8; 9000];
        let n = libc::fread(rest.as_mut_ptr().cast::<c_void>(), 1, rest.len(), stream);
        let (end, failed) = (libc::feof(stream), libc::ferror(stream));
        libc::fclose(stream);
        Ok(format!(
            "{}, {back} at {at}, {sought}, {}, end {end}, error {failed}",
            shown(&said),
            shown(&rest[..n])
        ))
    }
}

/// A stream on a duplicate of a descriptor: reads a little, then writes where the mode has it; the offset is shared.
fn fdopen(actor: &Actor, words: &mut Words<'_>) -> Answer {
    let (fd, mode) = (actor.fd(words), c_string(words.next()));
    // SAFETY: a descriptor; the stream takes the duplicate over, or it is closed; buffers with their lengths.
    unsafe {
        let own = check(libc::dup(fd))? as i32;
        let stream = libc::fdopen(own, mode.as_ptr());
        if stream.is_null() {
            let error = io::Error::last_os_error();
            libc::close(own);
            return Err(error);
        }
        let mut some = [0u8; 37];
        let n = libc::fread(some.as_mut_ptr().cast::<c_void>(), 1, some.len(), stream);
        libc::fseek(stream, 0, libc::SEEK_CUR);
        let put = libc::fputs(c"through a stream".as_ptr(), stream);
        let closed = libc::fclose(stream);
        let at = libc::lseek(fd, 0, libc::SEEK_CUR);
        Ok(format!("{}, {}, closed {closed}, at {at}", shown(&some[..n]), if put < 0 { -1 } else { 0 }))
    }
}

/// A call on a stream that stays open.
fn stream(actor: &mut Actor, words: &mut Words<'_>) -> Answer {
    let (slot, call) = (words.number() as usize, words.next());
    let Stream(stream) = actor.streams[slot];
    if call == "open" {
        let (place, mode) = (actor.place(words), words.next());
        let new = open_stream(&place, mode)?;
        actor.streams[slot] = Stream(new);
        if !stream.is_null() {
            // SAFETY: an open stream, which nothing refers to any more.
            unsafe { libc::fclose(stream) };
        }
        return Ok("0".to_owned());
    }
    if stream.is_null() {
        return Ok("no stream".to_owned());
    }
    let number = words.number();
    // SAFETY: an open stream; strings that end with zero, buffers with their lengths.
    unsafe {
        // Between reading and writing C asks for a seek.
        if call != "close" {
            libc::fseek(stream, 0, libc::SEEK_CUR);
        }
        let done = match call {
            // How much a buffer holds is nobody's business: what was put is flushed.
            "put" => {
                let put = (0..number)
                    .all(|i| libc::fputs(c_string(&format!("kept line {i}\n")).as_ptr(), stream) >= 0);
                i64::from(put) - i64::from(libc::fflush(stream))
            }
            "get" => {
                let mut some = vec![0u8; number as usize];
                let n = libc::fread(some.as_mut_ptr().cast::<c_void>(), 1, some.len(), stream);
                return Ok(format!("{}, end {}", shown(&some[..n]), libc::feof(stream)));
            }
            "seek" => libc::fseek(stream, number, libc::SEEK_SET).into(),
            _ => {
                actor.streams[slot] = Stream::NONE;
                return Ok(libc::fclose(stream).to_string());
            }
        };
        Ok(format!("{done} at {}", libc::ftell(stream)))
    }
}

/// Everything below a directory: names, attributes, contents.
fn tree(path: &Path, lines: &mut Vec<String>) -> io::Result<()> {
    let meta = path.symlink_metadata()?;
    let kind = meta.file_type();
    let body = if kind.is_file() {
        shown(&std::fs::read(path)?)
    } else if kind.is_symlink() {
        path.read_link()?.display().to_string()
    } else {
        String::new()
    };
    lines.push(format!(
        "{} {:o} {} {}:{} {body}",
        path.display(),
        // As in `calls`: below /proc a symlink says what a descriptor may.
        if kind.is_symlink() { meta.mode() & libc::S_IFMT } else { meta.mode() },
        meta.nlink(),
        meta.uid(),
        meta.gid()
    ));
    if kind.is_dir() {
        let mut names =
            std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        names.iter().try_for_each(|path| tree(path, lines))?;
    }
    Ok(())
}

/// sh(1) with a command on two paths, and the descriptor of a slot as its standard input.
fn shell(actor: &Actor, words: &mut Words<'_>) -> Answer {
    let which = words.next();
    let (input, one, two) = (actor.fd(words), actor.place(words), actor.place(words));
    let script = match which {
        "append" => "echo appended >> \"$1\"; cat \"$1\" | cksum",
        "copy" => "cp \"$1\" \"$2\" && cksum < \"$2\"",
        "move" => "mv -f \"$1\" \"$2\" && ls -A . | sort",
        "input" => "head -c 10 | cksum; cat | cksum; cat < \"$1\" | wc -c",
        "both" => "exec 3<> \"$1\" && echo xyz >&3 && cat <&3 | cksum && cd \"$2\" && pwd -P",
        _ => "find \"$1\" -printf '%P %y %n\\n' | sort",
    };
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .args([&one, &two].map(|place| place.path.to_string_lossy().into_owned()));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(move || if input < 0 { Ok(()) } else { check(libc::dup2(input, 0)).map(drop) })
    };
    let out = command.output()?;
    Ok(format!("{}: {}", out.status, String::from_utf8_lossy(&out.stdout).trim_end()))
}
