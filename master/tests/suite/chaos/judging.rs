//! Tests of the checker. The checker must find violations in evidence that a test has changed, and in a run with a
//! store that ignores versions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use master::store::{JobRecord, Wish};
use protocol::agent::ExitOutcome;
use protocol::ids::Generation;
use protocol::view::JobResult;
use testkit::chaos::{Deed, Fault, Point, Strike};
use testkit::fake::{AgentEvent, Written};

use crate::chaos::checker::violations;
use crate::chaos::evidence::Evidence;
use crate::chaos::place::Scenario;
use crate::chaos::play::{Play, Played, Thaw};
use crate::faulty_store::{Bug, FaultyStore};

/// A part of the sentence that the checker must report, and the change of the evidence that causes this violation.
type Tampering = (&'static str, fn(&mut Evidence));

/// The last version of the record.
fn last_record(evidence: &mut Evidence) -> &mut JobRecord {
    let last = evidence.records.iter_mut().rev().find_map(|(_, written)| match written {
        Written::Record(stored) => Some(&mut stored.record),
        Written::Nothing(_) => None,
    });
    last.expect("there was no record")
}

/// The first event of a pod's agent that passes `test`.
fn event(evidence: &mut Evidence, pod: usize, test: impl Fn(&AgentEvent) -> bool) -> &mut (Instant, AgentEvent) {
    evidence.pods[pod].journal.iter_mut().find(|(_, event)| test(event)).expect("there is no such event")
}

fn is_config(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::Configured(..))
}

/// Changes of the evidence of [`Scenario::Completes`].
const TAMPERINGS: [Tampering; 19] = [
    ("was never on record", |evidence| evidence.answers.accepted.push("lost".to_owned())),
    ("2 jobs were on record", |evidence| last_record(evidence).uid = "another".to_owned()),
    ("two jobs have one name", |evidence| last_record(evidence).uid = "another".to_owned()),
    ("without a wish to delete it", |evidence| last_record(evidence).wish = Wish::Cancel),
    ("the epoch rose by more than one", |evidence| last_record(evidence).epoch += 2),
    ("from a master that began later", |evidence| last_record(evidence).holder = "master-0".to_owned()),
    ("the recorded end of the job has changed", |evidence| {
        last_record(evidence).ended.as_mut().expect("the job has not ended").result = JobResult::Cancelled;
    }),
    ("start 1.1 is on record twice", |evidence| {
        let failed = &mut last_record(evidence).restarts.failed_starts;
        failed.extend(failed.clone());
    }),
    ("not on record as failed", |evidence| last_record(evidence).restarts.failed_starts.clear()),
    ("exceed the budget of 2", |evidence| last_record(evidence).restarts.counted = 3),
    ("expected (1, 0..=0)", |evidence| last_record(evidence).restarts.uncounted = 1),
    ("two live pods for worker-0", |evidence| {
        let twin = evidence.pods.iter().find(|pod| pod.replica.index == 0).expect("worker-0 had no pod").clone();
        evidence.pods.push(twin);
    }),
    ("runs in start 1.1 twice", |evidence| {
        let again = event(evidence, 0, |event| matches!(event, AgentEvent::Started(_))).clone();
        evidence.pods[0].journal.insert(2, again);
    }),
    ("is configured for start 1.2 after", |evidence| {
        let again = evidence.pods[0].journal.iter().rev().find(|(_, event)| is_config(event)).cloned();
        evidence.pods[0].journal.push(again.expect("the agent was not configured"));
    }),
    ("see different clusters", |evidence| {
        if let (_, AgentEvent::Configured(_, env, _)) = event(evidence, 0, is_config) {
            env["TF_CONFIG"]["cluster"]["worker"][0] = "192.0.2.1:1".into();
        }
    }),
    ("before all its members are configured", |evidence| event(evidence, 0, is_config).0 += Duration::from_secs(9)),
    ("still runs in start 1.1", |evidence| {
        let is_end = |event: &AgentEvent| matches!(event, AgentEvent::Ended { .. });
        event(evidence, 0, is_end).0 += Duration::from_secs(9);
    }),
    ("the record must not say Some(Succeeded): not all", |evidence| {
        for (_, event) in evidence.pods.iter_mut().flat_map(|pod| &mut pod.journal) {
            if let AgentEvent::Ended { generation: Some(Generation { sequence: 2, .. }), outcome, .. } = event {
                *outcome = ExitOutcome::Code(3);
            }
        }
    }),
    ("left behind: 1 pods", |evidence| evidence.left.pods = 1),
];

/// The sizes in the first notice to the first pod's script.
fn first_sizes(evidence: &mut Evidence) -> &mut Vec<u32> {
    let (_, notice) = evidence.pods[0].notices.first_mut().expect("the script got no notice");
    &mut notice.split.as_mut().expect("the notice has no sizes").sizes
}

/// Changes of the evidence of [`Scenario::Balanced`].
const TAMPERINGS_OF_SIZES: [Tampering; 3] = [
    ("of start 1.1 has sizes", |evidence| first_sizes(evidence).reverse()),
    ("do not divide 96", |evidence| first_sizes(evidence)[0] += 1),
    ("only 1 versions of the sizes reached all ranks", |evidence| evidence.pods[2].notices.truncate(1)),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_finds_the_violation_in_each_tampered_evidence() {
    finds_each(Scenario::Completes, &TAMPERINGS).await;
    finds_each(Scenario::Balanced, &TAMPERINGS_OF_SIZES).await;
}

async fn finds_each(scenario: Scenario, tamperings: &[Tampering]) {
    let faultless = Play { scenario, strikes: vec![], thaw: Thaw::AtTheEnd }.run().await.evidence;
    assert_eq!(violations(&faultless), Vec::<String>::new());
    for (sentence, tamper) in tamperings {
        let mut evidence = faultless.clone();
        tamper(&mut evidence);
        let found = violations(&evidence);
        assert!(found.iter().any(|one| one.contains(sentence)), "\"{sentence}\" is not among {found:#?}");
    }
}

/// The deadline of a run with a store that ignores versions. The masters of such a run may never finish.
const LONG_ENOUGH: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn the_checker_finds_violations_in_a_run_with_a_store_that_ignores_versions() {
    let strike = Strike { point: Point::Before(Deed::MakeUp), fault: Fault::Freeze, passing: 1 };
    let play = Play { scenario: Scenario::Completes, strikes: vec![strike], thaw: Thaw::AtTheEnd };
    let faulty = |store| FaultyStore { store, bug: Bug::UpdateIgnoresVersion };
    let Played { violations, .. } = play.clone().run_over(LONG_ENOUGH, |store| Arc::new(faulty(store))).await;
    let says = |sentence: &str| violations.iter().any(|one| one.contains(sentence));
    assert!(says("a master that was replaced has changed the record"), "{violations:#?}");
    assert!(says("the recorded end of the job has changed"), "{violations:#?}");
    assert_eq!(
        play.run().await.violations,
        Vec::<String>::new(),
        "the checker finds violations in the same run with a correct store"
    );
}
