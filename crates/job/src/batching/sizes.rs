//! Sizes in proportion to the speeds of the ranks.

use protocol::batching::BatchBounds;

/// The rules that all sizes of a job must obey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRules {
    /// Samples of all ranks together in one step.
    pub global_batch: u32,
    /// The bounds of each rank.
    pub bounds: Vec<BatchBounds>,
    /// Each size is a multiple of this number, at least 1.
    pub multiple: u32,
}

/// Sizes in units of [`BatchRules::multiple`].
struct Units {
    total: u32,
    /// The smallest and the largest size of each rank.
    bounds: Vec<(u32, u32)>,
}

impl BatchRules {
    /// Divides the global batch in proportion to `speeds`: one positive, finite number for each rank. A rank whose
    /// share is outside its bounds gets the bound. `None` if no sizes obey the rules.
    pub fn divide(&self, speeds: &[f64]) -> Option<Vec<u32>> {
        let units = self.units()?;
        let shares = units.shares(speeds);
        let mut sizes: Vec<u32> = shares.iter().map(|share| share.floor() as u32).collect();
        let mut rest = units.total - sizes.iter().sum::<u32>();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by(|&a, &b| shares[b].fract().total_cmp(&shares[a].fract()));
        for &rank in order.iter().cycle() {
            if rest == 0 {
                break;
            }
            let grows = u32::from(sizes[rank] < units.bounds[rank].1);
            sizes[rank] += grows;
            rest -= grows;
        }
        Some(sizes.into_iter().map(|size| size * self.multiple).collect())
    }

    fn units(&self) -> Option<Units> {
        let total = self.global_batch / self.multiple;
        let bounds: Option<Vec<_>> = self.bounds.iter().map(|bounds| bounds.in_multiples(self.multiple)).collect();
        let bounds = bounds?;
        let sum = |of: fn(&(u32, u32)) -> u32| bounds.iter().map(|bounds| u64::from(of(bounds))).sum::<u64>();
        let fits = (sum(|bounds| bounds.0)..=sum(|bounds| bounds.1)).contains(&u64::from(total));
        let is_whole = self.global_batch.is_multiple_of(self.multiple);
        (fits && is_whole).then_some(Units { total, bounds })
    }
}

impl Units {
    /// The share of each rank, which is not a whole number. The sum is the total or a little less.
    fn shares(&self, speeds: &[f64]) -> Vec<f64> {
        let shares = |level: f64| -> Vec<f64> {
            let of = |(speed, (min, max)): (&f64, &(u32, u32))| (speed * level).clamp(f64::from(*min), f64::from(*max));
            speeds.iter().zip(&self.bounds).map(of).collect()
        };
        let highest =
            speeds.iter().zip(&self.bounds).map(|(speed, (_, max))| f64::from(*max) / speed).fold(0.0, f64::max);
        if shares(highest).iter().sum::<f64>() <= f64::from(self.total) {
            return shares(highest);
        }
        let (mut low, mut high) = (0.0, highest);
        loop {
            let level = f64::midpoint(low, high);
            if level <= low || level >= high {
                return shares(low);
            }
            if shares(level).iter().sum::<f64>() <= f64::from(self.total) { low = level } else { high = level }
        }
    }
}
