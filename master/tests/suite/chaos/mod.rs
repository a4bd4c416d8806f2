//! The crash matrix: faults strike masters at every point at which a master changes something. The pods and
//! the store are fakes. A checker then reads what the fakes have recorded. `make chaos` runs the whole matrix.

mod checker;
pub(crate) mod config;
mod evidence;
mod judging;
mod matrix;
mod place;
mod play;
mod turns;
mod voting;

use testkit::chaos::{Deed, Point};

use crate::chaos::place::Scenario;
use crate::chaos::play::{Play, Thaw};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fault_every_scenario_keeps_every_promise() {
    for scenario in Scenario::ALL {
        let played = Play { scenario, strikes: vec![], thaw: Thaw::AtTheEnd }.run().await;
        assert_eq!(played.violations, Vec::<String>::new(), "{}", played.evidence.history());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_at_any_point_breaks_no_promise() {
    let mut plays = matrix::single_faults(1);
    plays.extend(matrix::overlaps(1));
    // `Evicted` and `Elastic` each reach every point that is not about code or batch sizes. To save time, this test
    // plays each fault at such a point in only one of these two scenarios, chosen at random. It plays about one in
    // sixteen of the plays in other scenarios, and about one in 120 of the pairs of crashes. The seed is fixed, so each
    // run of the test chooses the same plays.
    let mut dice = fastrand::Rng::with_seed(3);
    let mut in_elastic = false;
    plays.retain(|(_, play)| match play.scenario {
        // A job is deleted as soon as its pods have ended, perhaps before the master has an agent's answer to
        // `/finish`. Then the fault after this answer does not strike, so this fault is played in all scenarios.
        _ if play.strikes.iter().any(|strike| strike.point == Point::After(Deed::Finish)) => true,
        // In `plays`, the play of a fault in `Elastic` comes right after the play of the same fault in `Evicted`.
        Scenario::Evicted => {
            in_elastic = dice.bool();
            !in_elastic
        }
        Scenario::Elastic => in_elastic,
        Scenario::Pushed if play.strikes.iter().any(|strike| strike.point.deed().is_about_code()) => true,
        Scenario::Balanced if play.strikes_at(Deed::Notify) => true,
        Scenario::Completes | Scenario::Cancelled | Scenario::Suspended | Scenario::Pushed | Scenario::Balanced => {
            dice.usize(..16) == 0
        }
    });
    // If the first master has sent the code to the agents before it crashes, its successor does not read the copy. So the
    // faults at this read are played three times.
    let reads: Vec<_> = plays.iter().filter(|(_, play)| play.strikes_at(Deed::ReadCode)).cloned().collect();
    plays.extend([reads.clone(), reads].concat());
    plays.extend(matrix::crashed_pairs(1).into_iter().filter(|_| dice.usize(..120) == 0));
    let report = matrix::play(plays).await;
    println!("{report}");
    report.judge();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: use make chaos"]
async fn the_whole_matrix_breaks_no_promise() {
    let rounds: u32 = config::rounds();
    let mut plays = vec![];
    for round in 1..=rounds {
        plays.extend(matrix::single_faults(round));
        plays.extend(matrix::overlaps(round));
        plays.extend(matrix::long_stalls(round));
        plays.extend(matrix::crashed_pairs(round));
        plays.extend(matrix::mixed_pairs(round, 20));
    }
    let report = matrix::play(plays).await;
    println!("{report}");
    report.judge();
}
