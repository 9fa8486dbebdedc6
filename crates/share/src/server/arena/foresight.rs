//! Whether pages that nobody has asked for are put into an arena: if at least half of those were read that were put there so lately.

/// So many are shown before it is known.
const FIRST: u32 = 16;
/// When so many were shown, older ones count half.
const MANY: u32 = 256;
/// One of so many is shown when few are read, as that may change.
const TRY: u32 = 32;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    /// Files whose pages were shown, and those of them that were read.
    shown: u32,
    read: u32,
    /// Files that were not.
    passed: u32,
}

impl Foresight {
    pub fn expects(&mut self) -> bool {
        if self.shown < FIRST || self.read * 2 >= self.shown {
            return true;
        }
        self.passed = (self.passed + 1) % TRY;
        self.passed == 0
    }

    pub fn shown(&mut self) {
        self.shown += 1;
        if self.shown >= MANY {
            (self.shown, self.read) = (self.shown / 2, self.read / 2);
        }
    }

    pub fn was_read(&mut self) {
        self.read += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mostly_read_is_shown() {
        let mut foresight = Foresight::default();
        let mut round = |reads: bool| {
            let shown = foresight.expects();
            if shown {
                foresight.shown();
                if reads {
                    foresight.was_read();
                }
            }
            shown
        };
        let count = |shown: &mut dyn FnMut() -> bool, of: u32| (0..of).filter(|_| shown()).count() as u32;
        assert_eq!(count(&mut || round(true), 1000), 1000);
        let vain = count(&mut || round(false), 10_000);
        assert!(vain < MANY + 10_000 / TRY, "{vain} of what nobody reads");
        let tries = count(&mut || round(true), 32 * MANY);
        assert!(tries > MANY, "{tries}: that it is read again was found out");
        assert_eq!(count(&mut || round(true), 100), 100);
    }
}
