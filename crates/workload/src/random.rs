//! Random numbers that are the same for the same seed on every machine and in every version.
//!
//! The generator is SplitMix64 (Steele, Lea, Flood 2014); the gamma distribution is drawn by Marsaglia and Tsang's method (2000).

/// The shape of Filebench's gamma distributions of file sizes and directory widths (its default, 1500 thousandths).
pub const GAMMA_SHAPE: f64 = 1.5;

/// A generator. Two with the same seed give the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator of stream `stream` of `seed`; streams of one seed are unrelated to each other.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut start = Random(seed);
        let base = start.word();
        let mut start = Random(base ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Random(start.word())
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be 0. The bias of at most `limit` in 2^64 does not matter here.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "a number below 0 is asked for");
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in (0, 1).
    fn unit(&mut self) -> f64 {
        ((self.word() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// A number of the normal distribution (polar method).
    fn normal(&mut self) -> f64 {
        loop {
            let (a, b) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = a * a + b * b;
            if square < 1.0 && square > 0.0 {
                return a * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    /// A number of the gamma distribution with shape [`GAMMA_SHAPE`] and mean `mean`.
    pub fn gamma(&mut self, mean: f64) -> f64 {
        let d = GAMMA_SHAPE - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v * mean / GAMMA_SHAPE;
            }
        }
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_streams_differ() {
        assert_eq!(Random::new(1, 2).word(), Random::new(1, 2).word());
        assert_ne!(Random::new(1, 2).word(), Random::new(1, 3).word());
        assert_ne!(Random::new(1, 2).word(), Random::new(2, 2).word());
        // The first numbers of SplitMix64 with state 0, as published.
        let mut zero = Random(0);
        assert_eq!([zero.word(), zero.word()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    /// Gamma with shape k and mean m has variance m² / k and skewness 2 / √k.
    #[test]
    fn gamma_has_its_moments() {
        let mut random = Random::new(7, 0);
        let n = 400_000;
        let mean = 1000.0;
        let draws: Vec<f64> = (0..n).map(|_| random.gamma(mean)).collect();
        let average = draws.iter().sum::<f64>() / f64::from(n);
        let moment = |k| draws.iter().map(|x| (x - average).powi(k)).sum::<f64>() / f64::from(n);
        assert!((average / mean - 1.0).abs() < 0.01, "{average}");
        assert!((moment(2) / (mean * mean / GAMMA_SHAPE) - 1.0).abs() < 0.02, "{}", moment(2));
        let skew = moment(3) / moment(2).powf(1.5);
        assert!((skew / (2.0 / GAMMA_SHAPE.sqrt()) - 1.0).abs() < 0.05, "{skew}");
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut random = Random::new(3, 0);
        let mut seen = [0u32; 7];
        (0..70_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|n| (9500..10500).contains(n)), "{seen:?}");
    }
}
