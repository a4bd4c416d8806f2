//! A master fails while a gang gives its pods back to a more urgent gang. All gangs run in the end.

use std::sync::Arc;

use futures_util::future::join_all;
use master::registry::{JobHandle, Submitted};
use protocol::agent::ExitOutcome;
use protocol::view::JobState;
use testkit::chaos::{Deed, Fault, Point, Strike};

use crate::chaos::place::{Master, Place, Scenario, ticks};
use crate::service::harness::{in_time, reach, spec};
use crate::service::turns::placed;

async fn submit(master: &Master, name: &str, workers: u32, priority: u32) -> JobHandle {
    let mut spec = spec(name, workers);
    spec.pod.priority_class = Some(format!("priority-{priority}").parse().expect("a valid name"));
    match master.jobs.requests.submit(spec).await.expect("the job was not accepted") {
        Submitted::Created(job) | Submitted::Existing(job) => job,
    }
}

/// Lets the fault strike the master of three gangs with room for four pods. A gang of two runs, a gang of four has the
/// rest of the room, and an urgent gang of four arrives.
async fn survive(strike: Strike) {
    let place = Place::new(Scenario::Completes, |store| Arc::new(store));
    place.backend.limit_room(4);
    let first = place.master("master-1", "logs-1", vec![strike]);
    reach(&submit(&first, "busy", 2, 0).await, JobState::Running).await;
    submit(&first, "large", 4, 0).await;
    placed(&place.backend, "large", 2).await;
    submit(&first, "urgent", 4, 10).await;
    in_time("the fault strikes", first.chaos.struck()).await;
    let is_replaced = matches!(strike.fault, Fault::Crash | Fault::Freeze);
    if strike.fault == Fault::Crash {
        first.die().await;
    }
    let master = if is_replaced { place.master("master-2", "logs-2", vec![]) } else { Arc::clone(&first) };
    first.chaos.release();
    master.jobs.complete().await;
    // After a fault, the large gang may get the room of the busy one before it gives its pods back.
    let runs = ["busy", "urgent", "large"].map(|name| succeed(&place, &master, name));
    in_time("all gangs run", join_all(runs)).await;
}

/// Lets the job succeed, also if it gets a new driver meanwhile.
async fn succeed(place: &Place, master: &Master, name: &str) {
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        let job = master.jobs.table.find(&name.parse().expect("a valid name")).expect("the job is lost");
        let view = job.view.borrow().clone();
        assert_eq!(view.restarts.total(), 0, "{name} has restarted: {view:?}");
        if view.state == JobState::Running {
            place.backend.agents(&view.name).values().for_each(|agent| agent.exit(ExitOutcome::Code(0)));
        } else if view.state == JobState::Succeeded {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_while_a_gang_gives_its_pods_back_stops_no_gang() {
    let faults = [Fault::Crash, Fault::Panic, Fault::Error, Fault::AnswerLost, Fault::Freeze, Fault::Delay];
    for point in [Point::Before(Deed::DeleteAll), Point::After(Deed::DeleteAll)] {
        for fault in faults.into_iter().filter(|fault| fault.fits(point)) {
            survive(Strike { point, fault, passing: 1 }).await;
        }
    }
}
