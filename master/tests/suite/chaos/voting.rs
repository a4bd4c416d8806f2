//! Simulated scripts of unequal speed. They report what they measure, and use new batch sizes when all of them have the
//! same version.

use std::time::{Duration, Instant};

use protocol::batching::Split;
use protocol::ids::Generation;
use protocol::progress::Progress;
use testkit::fake::FakeAgent;

/// Samples of all ranks in a step.
pub(crate) const GLOBAL_BATCH: u32 = 96;
/// How often the sizes change before the scripts end.
const CHANGES: u32 = 2;
/// Steps between two reports.
const STEPS: u64 = 8;
/// Microseconds of a sample in these steps. It is so long that the steps fill a window of the master.
const SAMPLE_US: u64 = 100_000;
/// Minimum time between two reports. Within ten reports, an order must reach all agents, or the master withdraws it.
const PAUSE: Duration = Duration::from_millis(40);

/// The scripts of one start.
pub(crate) struct Scripts {
    generation: Generation,
    /// The sizes that each script uses, by rank. Each script has its own list, as its notice has brought it.
    used: Vec<Split>,
    totals: Vec<Progress>,
    changes: u32,
    /// How many status requests each agent had received at the last report.
    polls: Vec<u64>,
    reported: Instant,
    random: fastrand::Rng,
}

impl Scripts {
    /// Scripts that begin with the sizes in their environments.
    pub(crate) fn begin(generation: Generation, agents: &[FakeAgent]) -> Self {
        let sizes = |agent: &FakeAgent| {
            let history = agent.history();
            let (_, environment) = history.configs.last().expect("a running agent has an environment");
            let sizes = environment["MUSTER_BATCH_SIZES"].as_str().expect("the environment has no sizes");
            Split { version: 0, sizes: serde_json::from_str(sizes).expect("not a list of sizes") }
        };
        let used: Vec<Split> = agents.iter().map(sizes).collect();
        let totals = vec![Progress::default(); used.len()];
        let polls = vec![0; used.len()];
        let random = fastrand::Rng::with_seed(generation.sequence.into());
        Self { generation, used, totals, changes: 0, polls, reported: Instant::now(), random }
    }

    /// Votes, and reports the newest steps if masters have asked for the steps before. Returns whether all changes have
    /// happened.
    pub(crate) fn train(&mut self, agents: &[FakeAgent]) -> bool {
        self.vote(agents);
        let polls: Vec<u64> = agents.iter().map(FakeAgent::polls).collect();
        let is_heard = polls.iter().zip(&self.polls).all(|(now, before)| now > before);
        if is_heard && self.reported.elapsed() >= PAUSE {
            (self.polls, self.reported) = (polls, Instant::now());
            self.report(agents);
        }
        self.changes >= CHANGES
    }

    /// The newest sizes that a script has been told, if its newest notice has any.
    fn noticed(&self, agent: &FakeAgent) -> Option<Split> {
        let mut notices = agent.history().notices.into_iter().rev();
        notices.find(|(generation, _)| *generation == self.generation)?.1.split
    }

    /// Uses the newest sizes if all scripts have the same version, and if it is higher than the version in use.
    fn vote(&mut self, agents: &[FakeAgent]) {
        let noticed: Option<Vec<Split>> = agents.iter().map(|agent| self.noticed(agent)).collect();
        let Some(noticed) = noticed else { return };
        let version = noticed[0].version;
        if version > self.used[0].version && noticed.iter().all(|split| split.version == version) {
            self.used = noticed;
            self.totals.fill(Progress::default());
            self.changes += 1;
        }
    }

    /// How long each rank needs for a sample, divided by [`SAMPLE_US`]. Rank 2 is slow at first. After the first
    /// change, rank 0 is slow instead. The times differ in each report, so two masters hardly ever choose the same sizes.
    fn times(&mut self) -> Vec<f64> {
        let slow = if self.changes > 0 { 0 } else { 2 };
        (0..self.used.len())
            .map(|rank| (1.0 + self.random.f64() * 0.4) * if rank == slow { 4.0 } else { 1.0 })
            .collect()
    }

    fn report(&mut self, agents: &[FakeAgent]) {
        let own = |(time, split): (f64, &Split), rank: usize| (time * f64::from(split.sizes[rank])) as u64 * SAMPLE_US;
        let times = self.times().into_iter().zip(&self.used);
        let compute: Vec<u64> = times.zip(0..).map(|(one, rank)| own(one, rank)).collect();
        let wall = compute.iter().copied().max().expect("a start has ranks");
        for (rank, agent) in agents.iter().enumerate() {
            let noticed = self.noticed(agent).map_or(0, |split| split.version);
            let (used, total) = (&self.used[rank], &mut self.totals[rank]);
            (total.split, total.batch, total.noticed) = (used.version, used.sizes[rank], noticed);
            total.step = Some(total.step.unwrap_or(0) + STEPS);
            total.steps += STEPS;
            total.compute_us += compute[rank];
            total.wall_us += wall;
            agent.report(total.clone());
        }
    }
}
