//! What was read, as it comes from the engine.

use super::PAGE;

/// Bytes in pieces, page by page.
pub(super) struct Pieces<'a> {
    bytes: &'a [&'a [u8]],
    /// Bytes of the first piece that were taken.
    at: usize,
}

impl<'a> Pieces<'a> {
    pub fn new(bytes: &'a [&'a [u8]]) -> Pieces<'a> {
        Pieces { bytes, at: 0 }
    }

    /// The next page, or what is left; joined in `to` if it is not in one piece.
    pub fn next<'b>(&mut self, to: &'b mut [u8; PAGE]) -> &'b [u8]
    where
        'a: 'b,
    {
        if let Some(piece) = self.bytes.first()
            && piece.len() - self.at >= PAGE
        {
            let page = &piece[self.at..][..PAGE];
            self.at += PAGE;
            if self.at == piece.len() {
                (self.bytes, self.at) = (&self.bytes[1..], 0);
            }
            return page;
        }
        let mut len = 0;
        while let Some(piece) = self.bytes.first()
            && len < PAGE
        {
            let n = (piece.len() - self.at).min(PAGE - len);
            to[len..len + n].copy_from_slice(&piece[self.at..self.at + n]);
            len += n;
            self.at += n;
            if self.at == piece.len() {
                (self.bytes, self.at) = (&self.bytes[1..], 0);
            }
        }
        &to[..len]
    }
}
