//! Simulates workers of unequal speed in virtual time, to find how long a job takes with a rule for batch sizes.
//!
//! The machines and their schedule come from OmniLearn (Tyagi and Sharma, `cpus_allocation.md` of its repository). Four
//! workers share 48 cores. The ratio of the largest number of cores to the smallest (the heterogeneity level, HL) goes
//! from 1 to 8 and back.

use job::batching::{Balancer, BatchRules, Order};
use protocol::batching::BatchBounds;
use protocol::ids::{ReplicaId, Role};
use protocol::progress::Progress;

/// The workers.
pub const RANKS: usize = 4;
/// The cores of each worker in each phase: HL 1, 2, 4, 8, 8, 4, 2, 1.
pub const SCHEDULE: [[f64; RANKS]; 8] = [HL1, HL2, HL4, HL8, HL8, HL4, HL2, HL1];
const HL1: [f64; RANKS] = [12.0, 12.0, 12.0, 12.0];
const HL2: [f64; RANKS] = [12.0, 12.0, 8.0, 16.0];
const HL4: [f64; RANKS] = [9.0, 9.0, 6.0, 24.0];
const HL8: [f64; RANKS] = [6.0, 6.0, 4.0, 32.0];

/// Number of reports of each rank in a phase.
const REPORTS: usize = 20;
/// Steps between two reports.
const STEPS: u64 = 8;
/// How long a core computes for one sample, in milliseconds.
const SAMPLE_MS: f64 = 120.0;
/// Number of epochs in a phase. OmniLearn's rule looks at the times after each epoch.
const EPOCHS: usize = 5;

/// How the time of a step depends on sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// Milliseconds that each computation takes in addition to the time for its samples.
    pub fixed_ms: f64,
    /// Minimum milliseconds of a computation, for example on a GPU with a small batch.
    pub least_ms: f64,
    /// Milliseconds of communication, at the same time as the computation.
    pub overlapping_ms: f64,
    /// The standard deviation of each computation, as a share of its time.
    pub noise: f64,
}

/// A rule for the sizes.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// All sizes are equal.
    Equal,
    /// Sizes in proportion to the cores, which this rule knows without a measurement. No rule can be faster, except for
    /// the rounding to whole samples.
    Ceiling,
    /// Muster's rule.
    Muster,
    /// OmniLearn's rule for synchronous training, with the bounds of each size.
    OmniLearn {
        /// The smallest size.
        min: f64,
        /// The largest size.
        max: f64,
    },
}

/// What a rule has achieved.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Seconds for the samples of the whole schedule.
    pub seconds: f64,
    /// How often the sizes changed in each phase.
    pub changes: Vec<usize>,
    /// The longest computation at the end of each phase, divided by the shortest, without noise.
    pub spreads: Vec<f64>,
    /// The smallest and the largest sum of all sizes.
    pub sums: (u32, u32),
}

/// Runs the whole schedule with a global batch. The first sizes are equal.
pub fn run(rule: Rule, global_batch: u32, costs: Costs, seed: u64) -> Outcome {
    let mut job = Job::new(rule, global_batch, costs, seed);
    for cores in SCHEDULE {
        let before = job.changes;
        if matches!(rule, Rule::Ceiling) {
            job.sizes = job.rules.divide(&cores).expect("the batch is at least the number of workers");
        }
        for report in 1..=REPORTS {
            job.steps(&cores);
            job.choose(report);
        }
        let times: Vec<f64> = (0..RANKS).map(|rank| job.exact_ms(&cores, rank)).collect();
        let shortest = times.iter().copied().fold(f64::INFINITY, f64::min);
        job.outcome.spreads.push(longest(&times) / shortest);
        job.outcome.changes.push(job.changes - before);
    }
    job.outcome
}

struct Job {
    rule: Rule,
    rules: BatchRules,
    costs: Costs,
    random: fastrand::Rng,
    sizes: Vec<u32>,
    changes: usize,
    balancer: Balancer,
    totals: Vec<Progress>,
    outcome: Outcome,
}

impl Job {
    fn new(rule: Rule, global_batch: u32, costs: Costs, seed: u64) -> Self {
        let rules =
            BatchRules { global_batch, bounds: vec![BatchBounds { min: 1, max: global_batch }; RANKS], multiple: 1 };
        let sizes = rules.divide(&HL1).expect("the batch is at least the number of workers");
        let outcome = Outcome { sums: (global_batch, global_batch), ..Outcome::default() };
        let random = fastrand::Rng::with_seed(seed);
        let balancer = Balancer::new((0..4).map(worker).collect(), rules.clone(), 1);
        let mut job = Self { rule, rules, costs, random, sizes: vec![], changes: 0, balancer, totals: vec![], outcome };
        job.begin(0, sizes);
        job
    }

    /// Begins to train with new sizes.
    fn begin(&mut self, split: u64, sizes: Vec<u32>) {
        let total = |&batch: &u32| Progress { split, batch, noticed: split, ..Progress::default() };
        self.totals = sizes.iter().map(total).collect();
        self.sizes = sizes;
        self.report();
    }

    /// Gives the reports of the ranks to Muster's rule. Returns the rule's order.
    fn report(&mut self) -> Option<Order> {
        let hear = |(index, total): (u32, &Progress)| self.balancer.hear(worker(index), total);
        (0..).zip(&self.totals).filter_map(hear).last()
    }

    fn exact_ms(&self, cores: &[f64; RANKS], rank: usize) -> f64 {
        let computed = f64::from(self.sizes[rank]) * SAMPLE_MS / cores[rank] + self.costs.fixed_ms;
        computed.max(self.costs.least_ms)
    }

    /// Trains until the next report.
    fn steps(&mut self, cores: &[f64; RANKS]) {
        for _ in 0..STEPS {
            let noisy = |job: &mut Self, rank| {
                job.exact_ms(cores, rank) * (1.0 + job.costs.noise * normal(&mut job.random)).max(0.1)
            };
            let times: Vec<f64> = (0..RANKS).map(|rank| noisy(self, rank)).collect();
            let wall = longest(&times).max(self.costs.overlapping_ms);
            for (total, time) in self.totals.iter_mut().zip(&times) {
                total.steps += 1;
                total.compute_us += (time * 1e3) as u64;
                total.wall_us += (wall * 1e3) as u64;
            }
            // With another sum, the same samples take more or fewer steps.
            let sum: u32 = self.sizes.iter().sum();
            self.outcome.seconds += wall / 1e3 * f64::from(self.rules.global_batch) / f64::from(sum);
            self.outcome.sums = (self.outcome.sums.0.min(sum), self.outcome.sums.1.max(sum));
        }
    }

    /// Lets the rule look at the times since its last change.
    fn choose(&mut self, report: usize) {
        let chosen = match self.rule {
            Rule::Muster => self.report().and_then(|order| match order {
                Order::Use(split) => Some((split.version, split.sizes)),
                Order::Withdraw => None,
            }),
            Rule::OmniLearn { min, max } if report.is_multiple_of(REPORTS / EPOCHS) => {
                Some((0, self.omnilearn(min, max)))
            }
            Rule::Equal | Rule::Ceiling | Rule::OmniLearn { .. } => None,
        };
        if let Some((version, sizes)) = chosen.filter(|(_, sizes)| *sizes != self.sizes) {
            self.changes += 1;
            self.begin(version, sizes);
        }
    }

    /// Each rank gets the size at which its time would be the mean. If the change would be less than 0.2 of the new
    /// size, the rank keeps its size. The samples that the bounds cut off, and the change of the sum, are divided among
    /// all ranks, rounded up.
    fn omnilearn(&mut self, min: f64, max: f64) -> Vec<u32> {
        let times: Vec<f64> = self.totals.iter().map(|total| total.compute_us as f64 / total.steps as f64).collect();
        let mean = times.iter().sum::<f64>() / RANKS as f64;
        let mut cut = 0.0;
        let mut moved = |(&size, time): (&u32, &f64)| {
            let wanted = f64::from(size) * mean / time;
            let kept = if (1.0 - f64::from(size) / wanted).abs() >= 0.2 { wanted } else { f64::from(size) };
            let bounded = kept.clamp(min, max);
            cut += ((kept - bounded) / RANKS as f64).ceil();
            bounded.ceil()
        };
        let moved: Vec<f64> = self.sizes.iter().zip(&times).map(&mut moved).collect();
        let excess =
            (moved.iter().sum::<f64>() + cut * RANKS as f64 - f64::from(self.rules.global_batch)) / RANKS as f64;
        let last = |size: f64| (size + cut - excess).ceil().max(1.0) as u32;
        self.totals.iter_mut().for_each(|total| *total = Progress { split: total.split, ..Progress::default() });
        moved.into_iter().map(last).collect()
    }
}

fn worker(index: u32) -> ReplicaId {
    ReplicaId { role: Role::Worker, index }
}

fn longest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// A random number of the normal distribution, by the method of Box and Muller.
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}
