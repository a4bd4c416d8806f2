//! Leases. A master takes a run for dead only after the run has died. A master without processor time takes no agent
//! for lost.

use std::time::Duration;

use proptest::prelude::*;
use protocol::lease::{ClockMillis, Fence, Lease, Renewal, Standing, Vigil};

const LENGTH: u64 = 1000;

/// One poll of a master. All times are in milliseconds.
#[derive(Debug, Clone)]
struct Exchange {
    /// The pause before the poll.
    pause: u64,
    /// The time until the request arrives; `None` if the request is lost.
    there: Option<u64>,
    /// The time until the answer arrives; `None` if the answer is lost.
    back: Option<u64>,
    /// The time from the arrival of the answer until the master notices it.
    stall: u64,
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let way = || prop_oneof![1 => Just(None), 4 => (0..6 * LENGTH).prop_map(Some), 8 => (0..50_u64).prop_map(Some)];
    (0..LENGTH, way(), way(), 0..2 * LENGTH).prop_map(|(pause, there, back, stall)| Exchange {
        pause,
        there,
        back,
        stall,
    })
}

fn millis(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Looks until the standing is at least `enough`. The first looks come after the pauses `gaps`, and all later looks are
/// on time. Returns the time of the last look.
fn look_until(vigil: &mut Vigil, from: u64, gaps: &[u64], enough: Standing) -> u64 {
    let mut now = from;
    let on_time = u64::try_from(vigil.tick().as_millis()).expect("too long");
    for gap in gaps.iter().copied().chain(std::iter::repeat(on_time)) {
        now += gap;
        if vigil.look(millis(now)) >= enough {
            break;
        }
    }
    now
}

proptest! {
    #[test]
    fn a_run_is_dead_before_a_master_takes_it_for_dead(
        exchanges in proptest::collection::vec(exchange(), 0..30),
        gaps in proptest::collection::vec(0..2 * LENGTH, 0..30),
        booted in 0..1_000_000_u64,
    ) {
        let lease = Lease::new(millis(LENGTH));
        let clock = |time: u64| ClockMillis(booted + time);
        let (mut now, mut heard, mut vigil) = (0, clock(0), Vigil::new(lease, Duration::ZERO));
        let mut arrivals = vec![(0, heard)];
        for Exchange { pause, there, back, stall } in exchanges {
            now += pause;
            let Some(there) = there else { continue };
            arrivals.push((now + there, heard));
            if let Some(back) = back {
                heard = clock(now + there);
                now += there + back + stall;
                vigil = Vigil::new(lease, millis(now));
            }
        }
        let taken_for_dead = look_until(&mut vigil, now, &gaps, Standing::Fenced);
        // Requests take effect in the order of their arrival. Some arrive after the master has taken the run for dead.
        arrivals.sort();
        let mut fence = Fence::default();
        for (at, heard) in arrivals {
            fence.renew(Renewal { fence: lease.fence(), heard }, clock(at));
        }
        prop_assert!(fence.has_passed(clock(taken_for_dead)), "the run still lives: {fence:?}, {:?}", clock(taken_for_dead));
    }

    #[test]
    fn a_master_that_gets_no_processor_time_takes_no_agent_for_lost(
        gaps in proptest::collection::vec(0..100 * LENGTH, 0..20),
    ) {
        let lease = Lease::new(millis(LENGTH));
        let mut vigil = Vigil::new(lease, Duration::ZERO);
        let mut now = 0;
        for gap in gaps {
            now += gap;
            prop_assert_eq!(vigil.look(millis(now)), Standing::Held, "the agent is taken for lost");
        }
    }
}

#[test]
fn a_silent_agent_is_lost_after_its_lease_and_its_run_is_dead_after_its_fence() {
    let lease = Lease::new(millis(LENGTH));
    let mut vigil = Vigil::new(lease, Duration::ZERO);
    let lost = look_until(&mut vigil, 0, &[], Standing::Lapsed);
    assert_eq!(lost, LENGTH);
    // The run must be dead after 3.403 s. The next look is at 3.45 s.
    assert_eq!(look_until(&mut vigil, lost, &[], Standing::Fenced), 3450);
}

#[test]
fn a_job_waits_for_a_silent_agent_for_less_than_three_leases_and_a_second() {
    for seconds in 1..=5 {
        let mut vigil = Vigil::new(Lease::new(Duration::from_secs(seconds)), Duration::ZERO);
        let dead = look_until(&mut vigil, 0, &[], Standing::Fenced);
        assert!(dead < 3000 * seconds + 1000, "the job waits {dead} ms with a lease of {seconds} s");
    }
}

#[test]
fn only_requests_that_name_a_newer_answer_move_the_fence() {
    let mut fence = Fence::default();
    let renewal = |heard: u64| Renewal { fence: millis(300), heard: ClockMillis(heard) };
    assert_eq!((fence.until(), fence.has_passed(ClockMillis(u64::MAX))), (None, false));
    for (heard, now, until) in [(50, 60, 350), (40, 70, 350), (60, 500, 360), (u64::MAX, 600, 900)] {
        fence.renew(renewal(heard), ClockMillis(now));
        assert_eq!(
            fence.until(),
            Some(ClockMillis(until)),
            "after a request at {now} that names the answer at {heard}"
        );
    }
    fence.lift();
    assert_eq!(fence.until(), None);
}
