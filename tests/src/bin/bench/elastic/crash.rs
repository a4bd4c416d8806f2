//! Measures the restart after 1 of 8 scripts crashes. Compares it with a shell that starts 8 scripts, and with
//! torchrun.

use std::any::Any;
use std::io::Write as _;
use std::thread;
use std::time::Duration;

use super::site::{Gang, HELLO, Site, kill};
use super::torchrun::{self, Torchrun, Tuning};
use super::{PEER_CRASHES, WORKERS};
use crate::sample::{Figure, Row};

/// The longest interval at which any version of torchrun checks its scripts by default. Each crash of a script of
/// torchrun comes at a random time within this interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// Scripts of a launcher. When one script crashes, the launcher restarts all of them.
struct Crashing {
    // Declared before `site`, so that the launcher ends before the folder of the site is deleted.
    _launcher: Box<dyn Any>,
    site: Site,
    gang: Gang,
}

/// Measures `pairs` pairs: the restart by Muster after a crash, and the start by a shell. In the first [`PEER_CRASHES`]
/// pairs, also crashes a script of each torchrun of [`peers`].
pub(crate) fn compare(pairs: usize) -> anyhow::Result<Vec<Row>> {
    let mut shell = Site::new(HELLO)?;
    let workers = WORKERS.to_string();
    let mut muster = Crashing::start(|site| Ok(Box::new(site.muster(&["--worker-num", &workers]))))?;
    let (mut crashes, mut starts) = (vec![], vec![]);
    let mut peers = peers()?;
    for pair in 0..pairs {
        crashes.push(muster.crash(pair % WORKERS)?);
        starts.push(shell.shell_start()?);
        if pair < PEER_CRASHES {
            for (peer, _, times) in &mut peers {
                thread::sleep(DEFAULT_INTERVAL.mul_f64(fastrand::f64()));
                times.push(peer.crash(pair % WORKERS)?);
            }
        }
    }
    let added = added(&crashes, &starts);
    let mut rows = vec![
        Row::new("crash of 1 of 8 scripts, until all 8 have restarted", Figure::Times(crashes.clone()))
            .against(Figure::Times(starts.clone()), "a shell's start of the same 8"),
        Row::new("the same, without the time of a shell's start", Figure::Times(added.clone())),
    ];
    for (_, bare_is, times) in peers {
        let count = times.len();
        let row = Row::new(format!("the same, only the first {count} crashes"), Figure::Times(added[..count].to_vec()));
        rows.push(row.against(Figure::Times(self::added(&times, &starts[..count])), bare_is));
    }
    Ok(rows)
}

impl Crashing {
    fn start(launch: impl FnOnce(&Site) -> anyhow::Result<Box<dyn Any>>) -> anyhow::Result<Self> {
        let mut site = Site::new(HELLO)?;
        let launcher = launch(&site)?;
        let gang = site.gang_of(WORKERS)?;
        Ok(Self { _launcher: launcher, site, gang })
    }

    /// Kills the script with this rank. Returns the time until all scripts of the next start have started.
    fn crash(&mut self, rank: usize) -> anyhow::Result<Duration> {
        let event = kill(self.gang.pids[rank]);
        self.gang = self.site.gang_of(WORKERS)?;
        self.gang.since(event)
    }
}

/// Starts one torchrun with each tuning. Returns an empty list if torchrun is not installed.
fn peers() -> anyhow::Result<Vec<(Crashing, &'static str, Vec<Duration>)>> {
    let version = match torchrun::version() {
        Ok(version) => version,
        Err(error) => {
            writeln!(std::io::stderr(), "skipped: the rows about torchrun: {error:#}")?;
            return Ok(vec![]);
        }
    };
    writeln!(std::io::stderr(), "torchrun belongs to torch {version}")?;
    let of = |tuning| Crashing::start(move |site| Ok(Box::new(Torchrun::of_all(site, tuning)?)));
    Ok(vec![
        (of(Tuning::Default)?, "torchrun, default intervals", vec![]),
        (of(Tuning::Fast)?, "torchrun --monitor_interval 0.02", vec![]),
    ])
}

/// Returns the times that a launcher adds to a shell's start of the same scripts. Each is at least 1 µs, because ratios
/// divide by it.
fn added(times: &[Duration], starts: &[Duration]) -> Vec<Duration> {
    let least = Duration::from_micros(1);
    times.iter().zip(starts).map(|(time, start)| time.saturating_sub(*start).max(least)).collect()
}
