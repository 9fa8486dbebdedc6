//! Names in 24 bytes, with what most of them are inside.

/// A name of a file.
#[derive(Debug)]
pub(super) enum Text {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

const SHORT: usize = 22;
const _: () = assert!(size_of::<Text>() == 24);

impl Text {
    pub fn of(name: &[u8]) -> Text {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..name.len()) {
            Some(short) => {
                short.copy_from_slice(name);
                Text::Short { len: name.len() as u8, bytes }
            }
            None => Text::Long(name.into()),
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Text::Short { len, bytes } => &bytes[..*len as usize],
            Text::Long(name) => name,
        }
    }

    #[inline]
    pub fn is(&self, name: &[u8]) -> bool {
        self.bytes() == name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_every_length() {
        for len in 0..=255 {
            let name: Vec<u8> = (0..len).collect();
            let text = Text::of(&name);
            assert!(text.is(&name) && text.bytes() == name);
            assert!(!text.is(b"other") && (len == 0 || !text.is(&name[1..])));
        }
    }
}
