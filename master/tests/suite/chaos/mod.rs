//! The crash matrix: faults strike masters at every point at which a master changes something. The pods and
//! the store are fakes. A checker then reads what the fakes have recorded. `make chaos` runs the whole matrix.

mod checker;
mod config;
mod evidence;
mod judging;
mod matrix;
mod place;
mod play;

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
    // `Evicted` and `Elastic` reach every point that is not about code. This test plays each fault in one of these two
    // scenarios, all faults about code, one in sixteen of the other faults, and one in 120 of the pairs of crashes.
    let (mut index, mut in_elastic) = (0, false);
    plays.retain(|(_, play)| {
        index += 1;
        // Of each fault's scenarios, `Elastic` follows `Evicted`.
        in_elastic ^= play.scenario == Scenario::Evicted;
        match play.scenario {
            Scenario::Evicted => !in_elastic,
            Scenario::Elastic => in_elastic,
            Scenario::Pushed if play.strikes.iter().any(|strike| strike.point.deed().is_about_code()) => true,
            Scenario::Completes | Scenario::Cancelled | Scenario::Suspended | Scenario::Pushed => index % 16 == 0,
        }
    });
    plays.extend(matrix::crashed_pairs(1).into_iter().step_by(120));
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
