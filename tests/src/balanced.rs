//! A job whose batch sizes change while it runs, and the journals that its script writes.
//!
//! The checks read only the journals, because the script alone knows which samples it has used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use protocol::ids::Generation;

/// The script. Its description is at its beginning.
pub const SCRIPT: &str = include_str!("balanced.py");
/// Number of samples in an epoch of the script.
pub const SAMPLES: usize = 1500;
/// The global batch of jobs of this script.
pub const GLOBAL_BATCH: u32 = 96;

/// What one rank has written about a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The samples that the rank has used.
    pub samples: Vec<usize>,
    /// The version of the batch sizes.
    pub split: u64,
    /// The newest version that the rank knew, or 0.
    pub noticed: u64,
}

/// The lines of all ranks about one step.
type Ranks = BTreeMap<usize, Line>;

/// The journals of one job.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    /// The steps of each start.
    pub starts: BTreeMap<Generation, BTreeMap<u64, Ranks>>,
}

/// Makes this rank slow.
///
/// # Panics
/// If the file cannot be written.
pub fn slow_down(folder: &Path, rank: usize) {
    // The script may read the file at any time, so it must never be empty.
    let new = folder.join("slow.new");
    fs::write(&new, rank.to_string()).expect("cannot write the file");
    fs::rename(new, folder.join("slow")).expect("cannot rename the file");
}

/// Lets the script end after its present step.
///
/// # Panics
/// If the file cannot be written.
pub fn end(folder: &Path) {
    fs::write(folder.join("end"), "").expect("cannot write the file");
}

impl Journal {
    /// Reads the journals in a folder. The script may still write them.
    ///
    /// # Panics
    /// If the folder cannot be read, or if a line is not as the script writes it.
    pub fn read(folder: &Path) -> Self {
        let mut starts: BTreeMap<Generation, BTreeMap<u64, Ranks>> = BTreeMap::new();
        for entry in fs::read_dir(folder).expect("cannot read the folder").flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            let Some((start, rank)) = name.strip_suffix(".journal").and_then(|name| name.rsplit_once('.')) else {
                continue;
            };
            let steps = starts.entry(start.parse().expect("not a generation")).or_default();
            let rank = rank.parse().expect("not a rank");
            let text = fs::read_to_string(entry.path()).expect("cannot read the journal");
            // The script may be writing the text after the last line.
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            for line in lines {
                let (step, samples, split, noticed) =
                    serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}: {line}"));
                steps.entry(step).or_default().insert(rank, Line { samples, split, noticed });
            }
        }
        Self { starts }
    }

    /// The last step of the newest start about which all of these ranks have written.
    pub fn newest(&self, ranks: usize) -> Option<(Generation, &Ranks)> {
        let (generation, steps) = self.starts.last_key_value()?;
        let (_, lines) = steps.iter().rev().find(|(_, lines)| lines.len() == ranks)?;
        Some((*generation, lines))
    }

    /// The rank with the largest batch in the newest step of these ranks.
    pub fn largest(&self, ranks: usize) -> Option<usize> {
        self.newest(ranks)?.1.iter().max_by_key(|(_, line)| line.samples.len()).map(|(rank, _)| *rank)
    }

    /// The sizes of each version that a start has used, by rank.
    pub fn versions(&self, start: Generation) -> BTreeMap<u64, Vec<usize>> {
        let steps = self.starts.get(&start).into_iter().flat_map(full_steps);
        steps.map(|(_, ranks)| (ranks[&0].split, sizes(ranks))).collect()
    }

    /// The steps that count: no later start has repeated them. Each step comes with its start.
    pub fn kept(&self) -> BTreeMap<u64, (Generation, &Ranks)> {
        let mut kept = BTreeMap::new();
        for (generation, steps) in &self.starts {
            kept.extend(steps.iter().map(|(step, ranks)| (*step, (*generation, ranks))));
        }
        kept
    }

    /// The number of steps that all ranks of a start had begun, and that a later start has repeated.
    pub fn repeated(&self) -> usize {
        let kept = self.kept();
        let is_whole = |start: &BTreeMap<u64, Ranks>, ranks: &Ranks| ranks.len() == world(start);
        let of_start = |(generation, steps): (&Generation, &BTreeMap<u64, Ranks>)| {
            steps.iter().filter(|(step, ranks)| kept[step].0 != *generation && is_whole(steps, ranks)).count()
        };
        self.starts.iter().map(of_start).sum()
    }

    /// The violations of the rules, each as a sentence. At each step, all ranks use one version of the sizes. A version
    /// has the same sizes for a whole start. The steps that count are complete, their sizes add up to the global batch,
    /// and each epoch uses each sample once.
    pub fn violations(&self) -> Vec<String> {
        let mut found = vec![];
        for (generation, steps) in &self.starts {
            found.extend(steps.iter().filter_map(|(step, ranks)| of_versions(*generation, *step, ranks)));
            found.extend(of_sizes(*generation, steps));
        }
        found.extend(self.of_kept_steps());
        found
    }

    fn of_kept_steps(&self) -> Vec<String> {
        let (kept, mut found, mut epoch) = (self.kept(), vec![], BTreeSet::new());
        let missing = (1..).zip(kept.keys()).find(|(expected, step)| expected != *step).map(|(expected, _)| expected);
        found.extend(missing.map(|step| format!("step {step} is missing")));
        for (step, (generation, ranks)) in kept {
            let world = world(&self.starts[&generation]);
            if ranks.len() != world {
                found.push(format!("only {:?} of {world} ranks made step {step} in start {generation}", ranks.keys()));
            }
            let (sum, left) = (sum(ranks), SAMPLES - epoch.len());
            if sum != left.min(GLOBAL_BATCH as usize) {
                found.push(format!("step {step} in start {generation} used {sum} samples: {:?}", sizes(ranks)));
            }
            for sample in ranks.values().flat_map(|line| &line.samples) {
                if !epoch.insert(*sample) {
                    found.push(format!("step {step} in start {generation} used sample {sample} again in its epoch"));
                }
            }
            if epoch.len() >= SAMPLES {
                epoch.clear();
            }
        }
        found
    }
}

fn sizes(ranks: &Ranks) -> Vec<usize> {
    ranks.values().map(|line| line.samples.len()).collect()
}

fn sum(ranks: &Ranks) -> usize {
    sizes(ranks).iter().sum()
}

/// The number of ranks of a start.
fn world(steps: &BTreeMap<u64, Ranks>) -> usize {
    steps.values().flat_map(BTreeMap::keys).max().map_or(0, |last| last + 1)
}

fn of_versions(generation: Generation, step: u64, ranks: &Ranks) -> Option<String> {
    let versions: BTreeSet<u64> = ranks.values().map(|line| line.split).collect();
    (versions.len() > 1).then(|| format!("the ranks made step {step} in start {generation} with versions {versions:?}"))
}

/// The steps of a start that all ranks have begun, without the last steps of epochs, which have other sizes.
fn full_steps(steps: &BTreeMap<u64, Ranks>) -> impl Iterator<Item = (u64, &Ranks)> {
    let world = world(steps);
    let is_full = move |ranks: &Ranks| ranks.len() == world && sum(ranks) == GLOBAL_BATCH as usize;
    steps.iter().map(|(step, ranks)| (*step, ranks)).filter(move |(_, ranks)| is_full(ranks))
}

/// The versions of a start that had different sizes at different steps.
fn of_sizes(generation: Generation, steps: &BTreeMap<u64, Ranks>) -> Vec<String> {
    let mut known: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut found = vec![];
    for (step, ranks) in full_steps(steps) {
        let (version, sizes) = (ranks[&0].split, sizes(ranks));
        let first = known.entry(version).or_insert_with(|| sizes.clone());
        if *first != sizes {
            found.push(format!("version {version} in start {generation} had {first:?}, and {sizes:?} at step {step}"));
        }
    }
    found
}
