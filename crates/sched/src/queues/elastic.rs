//! How many queues each class has: as many as its share of the time for which queues were busy.
//!
//! A class that is in use has a queue at least, where there are enough. With fewer queues than classes in use, the sizes of a direction share
//! first, then everybody. While only one class is in use all queues are its own.

use super::Class;

/// The part of a share that is left of it after another period.
const KEPT: f64 = 0.5;
/// A class below this part of all is not in use.
const LEAST: f64 = 0.01;

/// Time for which the classes kept queues busy.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    busy: [f64; 4],
    /// What was assigned last.
    now: Vec<Option<Class>>,
    /// What the load asked for the last time, when it was not that: it is done when it is asked for twice in a row.
    asked: Vec<Option<Class>>,
}

impl Shares {
    /// A request of a class kept a queue busy for so long, nanoseconds.
    pub fn add(&mut self, class: Class, busy: f64) {
        self.busy[class as usize] += busy;
    }

    /// The class of each of `queues` queues in the next period. `None`: anybody's.
    pub fn assign(&mut self, queues: usize) -> Vec<Option<Class>> {
        let wanted = divide(&self.busy, queues);
        self.busy.iter_mut().for_each(|busy| *busy *= KEPT);
        if self.now.len() != queues || wanted == self.asked {
            self.now = wanted.clone();
        }
        self.asked = wanted;
        self.now.clone()
    }
}

/// Divides queues among classes by their shares.
fn divide(busy: &[f64; 4], queues: usize) -> Vec<Option<Class>> {
    let all: f64 = busy.iter().sum();
    let used: Vec<Class> =
        Class::ALL.into_iter().filter(|&class| all > 0.0 && busy[class as usize] / all >= LEAST).collect();
    if used.is_empty() || queues < used.len() {
        return vec![None; queues];
    }
    let mut counts: Vec<usize> = vec![1; used.len()];
    for _ in used.len()..queues {
        // The next one to whoever has the least for its share.
        let of = |i: usize| busy[used[i] as usize] / counts[i] as f64;
        let neediest = (0..used.len()).max_by(|&a, &b| of(a).total_cmp(&of(b)));
        counts[neediest.unwrap_or(0)] += 1;
    }
    used.into_iter().zip(counts).flat_map(|(class, count)| vec![Some(class); count]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::*;

    fn count(classes: &[Option<Class>], class: Class) -> usize {
        classes.iter().filter(|&&c| c == Some(class)).count()
    }

    #[test]
    fn shares_follow_the_load() {
        let all = divide(&[1.0, 1.0, 2.0, 4.0], 8);
        assert_eq!(Class::ALL.map(|c| count(&all, c)), [1, 1, 2, 4]);
        let all = divide(&[1000.0, 0.0, 0.0, 5.0], 4);
        assert_eq!(all, vec![Some(SmallRead); 4], "the rest is not in use");
        let all = divide(&[1000.0, 0.0, 0.0, 50.0], 4);
        assert_eq!([count(&all, SmallRead), count(&all, LargeWrite)], [3, 1]);
        assert_eq!(divide(&[1.0; 4], 3), vec![None; 3], "fewer than classes");
        assert_eq!(divide(&[0.0; 4], 3), vec![None; 3]);
    }

    #[test]
    fn a_moment_does_not_change_them() {
        let mut shares = Shares::default();
        shares.add(SmallRead, 100.0);
        assert_eq!(shares.assign(2), vec![Some(SmallRead); 2]);
        shares.add(SmallWrite, 100.0);
        assert_eq!(shares.assign(2), vec![Some(SmallRead); 2], "asked for once");
        shares.add(SmallWrite, 100.0);
        assert_eq!(shares.assign(2), vec![Some(SmallRead), Some(SmallWrite)]);
        for _ in 0..10 {
            shares.add(SmallWrite, 100.0);
            shares.assign(2);
        }
        assert_eq!(shares.assign(2), vec![Some(SmallWrite); 2]);
    }
}
