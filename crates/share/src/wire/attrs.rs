//! Attributes, changes of them, and what a file system tells of itself.

use super::GARBLED;
use format::shared::AttrImage;
use fs::{Attr, FileType, Ino, Result, SetAttr, SetTime, StatFs, Time};
use zerocopy::FromBytes;

/// Attributes for the wire.
pub fn attr_image(a: &Attr) -> AttrImage {
    AttrImage {
        ino: a.ino.0.into(),
        size: a.size.into(),
        blocks: a.blocks.into(),
        rdev: a.rdev.into(),
        uid: a.uid.into(),
        gid: a.gid.into(),
        mode: a.mode().into(),
        nlink: a.nlink.into(),
        generation: a.generation.into(),
        atime_nsec: a.atime.nsec.into(),
        mtime_nsec: a.mtime.nsec.into(),
        ctime_nsec: a.ctime.nsec.into(),
        atime: a.atime.sec.into(),
        mtime: a.mtime.sec.into(),
        ctime: a.ctime.sec.into(),
        btime: a.btime.sec.into(),
        btime_nsec: a.btime.nsec.into(),
        xattrs: (a.xattrs as u32).into(),
        reserved: [0; 16],
    }
}

/// Attributes from the wire.
pub fn attr(image: &AttrImage) -> Result<Attr> {
    let mode = image.mode.get();
    let time = |sec: i64, nsec: u32| Time { sec, nsec: nsec.min(999_999_999) };
    Ok(Attr {
        ino: Ino(image.ino.get()),
        generation: image.generation.get(),
        kind: FileType::from_mode(mode).ok_or(GARBLED)?,
        perm: (mode & 0o7777) as u16,
        nlink: image.nlink.get(),
        uid: image.uid.get(),
        gid: image.gid.get(),
        rdev: image.rdev.get(),
        size: image.size.get(),
        blocks: image.blocks.get(),
        atime: time(image.atime.get(), image.atime_nsec.get()),
        mtime: time(image.mtime.get(), image.mtime_nsec.get()),
        ctime: time(image.ctime.get(), image.ctime_nsec.get()),
        btime: time(image.btime.get(), image.btime_nsec.get()),
        xattrs: image.xattrs.get() != 0,
    })
}

/// Attributes one behind the other.
pub fn read_attrs(bytes: &[u8]) -> Result<Vec<Attr>> {
    bytes
        .chunks(size_of::<AttrImage>())
        .map(|b| attr(&AttrImage::read_from_bytes(b).map_err(|_| GARBLED)?))
        .collect()
}

/// Bytes of a [`SetAttr`] on the wire: six values of 24 bytes, each a kind and two numbers.
pub const SET_ATTR: usize = 6 * 24;

/// Writes a change of attributes.
pub fn set_attr(set: &SetAttr) -> [u8; SET_ATTR] {
    let time = |t: Option<SetTime>| match t {
        None => [0, 0, 0],
        Some(SetTime::Now) => [1, 0, 0],
        Some(SetTime::At(t)) => [2, t.sec as u64, t.nsec as u64],
    };
    let number = |n: Option<u64>| n.map_or([0, 0, 0], |n| [1, n, 0]);
    let all = [
        number(set.perm.map(u64::from)),
        number(set.uid.map(u64::from)),
        number(set.gid.map(u64::from)),
        number(set.size),
        time(set.atime),
        time(set.mtime),
    ];
    let mut out = [0; SET_ATTR];
    for (place, n) in out.chunks_exact_mut(8).zip(all.as_flattened()) {
        place.copy_from_slice(&n.to_le_bytes());
    }
    out
}

/// Reads what [`set_attr`] wrote.
pub fn read_set_attr(bytes: &[u8]) -> Result<SetAttr> {
    if bytes.len() != SET_ATTR {
        return Err(GARBLED);
    }
    let mut all = [0u64; SET_ATTR / 8];
    for (n, place) in all.iter_mut().zip(bytes.chunks_exact(8)) {
        *n = u64::from_le_bytes(place.try_into().map_err(|_| GARBLED)?);
    }
    let number = |i: usize| match all[3 * i] {
        0 => Ok(None),
        1 => Ok(Some(all[3 * i + 1])),
        _ => Err(GARBLED),
    };
    let small = |i: usize| number(i)?.map(|n| u32::try_from(n).map_err(|_| GARBLED)).transpose();
    let time = |i: usize| match all[3 * i..3 * i + 3] {
        [0, ..] => Ok(None),
        [1, ..] => Ok(Some(SetTime::Now)),
        [2, sec, nsec] if nsec < 1_000_000_000 => {
            Ok(Some(SetTime::At(Time { sec: sec as i64, nsec: nsec as u32 })))
        }
        _ => Err(GARBLED),
    };
    Ok(SetAttr {
        perm: number(0)?.map(|n| u16::try_from(n).map_err(|_| GARBLED)).transpose()?,
        uid: small(1)?,
        gid: small(2)?,
        size: number(3)?,
        atime: time(4)?,
        mtime: time(5)?,
        handle: None,
    })
}

/// Writes space and inodes.
pub fn statfs(s: &StatFs) -> [u8; 56] {
    let all = [
        s.block_size as u64,
        s.blocks,
        s.blocks_free,
        s.blocks_available,
        s.inodes,
        s.inodes_free,
        s.name_max as u64,
    ];
    let mut out = [0; 56];
    out.chunks_exact_mut(8).zip(all).for_each(|(place, n)| place.copy_from_slice(&n.to_le_bytes()));
    out
}

/// Reads what [`statfs`] wrote.
pub fn read_statfs(bytes: &[u8]) -> Result<StatFs> {
    let bytes: &[u8; 56] = bytes.try_into().map_err(|_| GARBLED)?;
    let n = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
    Ok(StatFs {
        block_size: n(0) as u32,
        blocks: n(1),
        blocks_free: n(2),
        blocks_available: n(3),
        inodes: n(4),
        inodes_free: n(5),
        name_max: n(6) as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let sets = [
            SetAttr::default(),
            SetAttr {
                perm: Some(0o4755),
                uid: Some(u32::MAX),
                gid: Some(0),
                size: Some(1 << 50),
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::At(Time { sec: -3, nsec: 999_999_999 })),
                handle: None,
            },
        ];
        for set in sets {
            assert_eq!(read_set_attr(&set_attr(&set)).unwrap(), set);
        }
        assert!(read_set_attr(&[0; SET_ATTR - 1]).is_err());
        assert!(read_set_attr(&[2; SET_ATTR]).is_err());
    }
}
