//! Tests of the turns of gangs that compete for room: the rules one by one, and random gangs in a simulated cluster.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use job::need::Need;
use job::turns::{AT_ONCE, GIVE_WAY_AFTER, PATIENCE, Post, Rank, Table, Turn};
use job::wait::Resources;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::{prop_assert, prop_oneof, proptest};
use protocol::ids::UnixMillis;

use crate::support::cases;

fn resources(names: &[&str]) -> Resources {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A gang that asks for CPUs, was accepted at this time, and has no pods yet.
fn new(name: &str, accepted_at: u64) -> Post {
    let rank = Rank { priority: Reverse(0), accepted_at: UnixMillis(accepted_at), uid: name.to_owned() };
    let need = Need { is_undecided: true, ..Need::default() };
    Post { name: name.parse().expect("a valid name"), rank, asks: resources(&["cpu"]), holds: false, need: Some(need) }
}

fn of_priority(priority: i32, post: Post) -> Post {
    Post { rank: Rank { priority: Reverse(priority), ..post.rank }, ..post }
}

/// The gang after the scheduler has refused some of its pods for lack of this resource.
fn short_of(resource: &str, post: Post) -> Post {
    let need = Need { lacking: resources(&[resource]), ..Need::default() };
    Post { holds: true, need: Some(need), ..post }
}

fn short(post: Post) -> Post {
    short_of("cpu", post)
}

/// The gang after each of its pods has a node.
fn complete(post: Post) -> Post {
    Post { holds: true, need: Some(Need { is_complete: true, ..Need::default() }), ..post }
}

fn running(post: Post) -> Post {
    Post { holds: true, need: None, ..post }
}

fn behind(name: &str) -> Turn {
    Turn::Queue(name.parse().expect("a valid name"))
}

fn held_for(name: &str) -> Turn {
    Turn::Hold(Some(name.parse().expect("a valid name")))
}

fn table(posts: &[Post]) -> Table {
    let mut table = Table::default();
    table.open();
    put(&mut table, posts, Duration::ZERO);
    table
}

fn put(table: &mut Table, posts: &[Post], now: Duration) {
    for post in posts {
        table.post(post.clone(), now);
        table.settle(now);
    }
}

/// The turns of these gangs, in the order of their posts.
fn turns(posts: &[Post]) -> Vec<Turn> {
    let table = table(posts);
    posts.iter().map(|post| table.turn(&post.rank.uid)).collect()
}

#[test]
fn of_two_gangs_that_lack_room_the_older_one_keeps_its_pods() {
    assert_eq!(turns(&[short(new("young", 2)), short(new("old", 1))]), [behind("old"), Turn::Minimum]);
}

#[test]
fn of_two_gangs_that_lack_room_the_one_with_the_higher_priority_keeps_its_pods() {
    let urgent = of_priority(5, short(new("urgent", 2)));
    assert_eq!(turns(&[short(new("old", 1)), urgent]), [behind("urgent"), Turn::Minimum]);
}

#[test]
fn a_young_gang_creates_no_pods_while_the_old_one_lacks_room_and_creates_them_when_the_old_one_runs() {
    let (old, young) = (new("old", 1), new("young", 2));
    let mut table = table(&[short(old.clone()), young.clone()]);
    assert_eq!(table.turn("young"), behind("old"));
    put(&mut table, &[complete(old.clone())], seconds(1));
    assert_eq!(table.turn("young"), Turn::Go);
    put(&mut table, &[short(young.clone()), running(old)], seconds(2));
    assert_eq!(table.turn("young"), Turn::Go, "a gang that waits for a running one gives its pods back");
}

#[test]
fn a_gang_whose_pods_all_have_a_node_is_not_disturbed() {
    assert_eq!(turns(&[short(new("old", 1)), complete(new("young", 2))]), [Turn::Go, Turn::Minimum]);
}

#[test]
fn a_gang_is_not_held_back_by_an_older_one_that_lacks_something_else() {
    let gpu = Post { asks: resources(&["cpu", "nvidia.com/gpu"]), ..new("gpu", 1) };
    assert_eq!(turns(&[short_of("nvidia.com/gpu", gpu), new("cpu", 2)]), [Turn::Go, Turn::Go]);
}

#[test]
fn a_gang_that_proves_to_need_what_the_older_one_lacks_gives_its_pods_back() {
    let without = Post { asks: resources(&["pods"]), ..new("young", 2) };
    assert_eq!(turns(&[short(new("old", 1)), short(without)]), [Turn::Minimum, behind("old")]);
}

#[test]
fn a_gang_that_another_program_holds_back_delays_nobody() {
    let gated = Post { need: Some(Need { is_gated: true, ..Need::default() }), holds: true, ..new("gated", 1) };
    assert_eq!(
        turns(&[gated, short(new("young", 2)), new("last", 3)]),
        [Turn::Minimum, Turn::Minimum, behind("young")]
    );
}

#[test]
fn gangs_that_all_fit_create_their_pods_at_the_same_time() {
    let gangs: Vec<Post> = (0..20).map(|index| new(&format!("gang-{index}"), index)).collect();
    assert_eq!(turns(&gangs), vec![Turn::Go; 20]);
}

#[test]
fn at_most_32_gangs_create_pods_before_the_scheduler_has_decided_on_the_first() {
    let gangs: Vec<Post> = (0..).take(AT_ONCE + 1).map(|index| new(&format!("gang-{index}"), index)).collect();
    let mut table = table(&gangs);
    let last = format!("gang-{AT_ONCE}");
    assert_eq!(table.turn(&last), held_for("gang-0"));
    put(&mut table, &[complete(gangs[0].clone())], seconds(1));
    assert_eq!(table.turn(&last), Turn::Go);
}

/// Gangs in a cluster that has refused a pod for lack of CPUs, and has room again now.
fn after_a_refusal(gangs: &[Post]) -> Table {
    let mut table = table(gangs);
    put(&mut table, &[short(gangs[0].clone())], Duration::ZERO);
    put(&mut table, &[gangs[0].clone()], Duration::ZERO);
    table
}

#[test]
fn after_a_refusal_young_gangs_wait_at_most_10_s_for_the_decision_on_an_old_gangs_pods() {
    let mut table = after_a_refusal(&[new("old", 1), new("young", 2)]);
    assert_eq!([table.turn("old"), table.turn("young")], [Turn::Go, held_for("old")]);
    table.settle(seconds(9));
    assert_eq!(table.next(), Some(PATIENCE));
    assert_eq!(table.turn("young"), held_for("old"));
    table.settle(PATIENCE);
    assert_eq!(table.turn("young"), Turn::Go);
}

#[test]
fn after_a_refusal_a_gang_that_asks_for_other_resources_waits_for_nobody() {
    let gpus = Post { asks: resources(&["cpu", "nvidia.com/gpu"]), ..new("gpus", 1) };
    let mut table = table(&[short_of("nvidia.com/gpu", gpus.clone())]);
    put(&mut table, &[gpus, new("cpus", 2)], Duration::ZERO);
    assert_eq!(table.turn("cpus"), Turn::Go);
}

#[test]
fn a_refusal_is_forgotten_when_no_gang_gathers_any_more() {
    let mut table = after_a_refusal(&[new("old", 1)]);
    put(&mut table, &[complete(new("old", 1))], seconds(1));
    put(&mut table, &[new("first", 2), new("second", 3)], seconds(2));
    assert_eq!([table.turn("first"), table.turn("second")], [Turn::Go, Turn::Go]);
}

#[test]
fn a_young_gang_gives_its_pods_back_as_soon_as_the_scheduler_has_decided_on_them() {
    let undecided = Post { holds: true, ..new("young", 2) };
    let mut table = table(&[undecided, short(new("old", 1))]);
    assert_eq!(table.turn("young"), held_for("old"), "the gang may still turn out to have enough room");
    put(&mut table, &[short(new("young", 2))], seconds(1));
    assert_eq!(table.turn("young"), behind("old"));
}

#[test]
fn nobody_creates_or_gives_back_before_each_job_of_an_earlier_master_has_posted_or_10_s_have_passed() {
    let (old, young) = (short(new("old", 1)), short(new("young", 2)));
    let mut table = Table::default();
    put(&mut table, &[old, young, running(new("runs", 3))], Duration::ZERO);
    let turns = |table: &Table| ["old", "young", "runs"].map(|uid| table.turn(uid));
    assert_eq!(turns(&table), [Turn::Hold(None), Turn::Hold(None), Turn::Go]);
    table.expect("late".to_owned(), Duration::ZERO);
    table.open();
    table.settle(seconds(9));
    assert_eq!(table.next(), Some(PATIENCE));
    assert_eq!(turns(&table), [Turn::Hold(None), Turn::Hold(None), Turn::Go]);
    table.settle(PATIENCE);
    assert_eq!(turns(&table), [Turn::Minimum, behind("old"), Turn::Minimum]);
    put(&mut table, &[of_priority(1, short(new("late", 4)))], seconds(11));
    assert_eq!(turns(&table), [behind("late"), behind("late"), Turn::Minimum]);
}

#[test]
fn a_running_job_does_not_grow_while_a_gang_lacks_what_it_asks_for() {
    let gpus = Post { asks: resources(&["nvidia.com/gpu"]), ..new("gpus", 1) };
    let posts = [running(new("elastic", 1)), running(gpus), short(new("young", 2))];
    assert_eq!(turns(&posts), [Turn::Minimum, Turn::Go, Turn::Go]);
}

#[test]
fn a_gang_larger_than_the_cluster_lets_the_others_try_after_30_s_in_which_nobody_holds_what_it_lacks() {
    let (large, small) = (new("large", 1), new("small", 2));
    let mut table = table(&[running(new("other", 0)), short(large.clone()), small.clone()]);
    table.settle(seconds(100));
    assert_eq!(table.turn("small"), behind("large"), "the other job may end and leave its room to the large one");
    table.remove("other");
    table.settle(seconds(101));
    assert_eq!(table.next(), Some(seconds(101) + GIVE_WAY_AFTER));
    table.settle(seconds(131));
    assert_eq!([table.turn("large"), table.turn("small")], [held_for("small"), Turn::Go]);
    put(&mut table, &[short(small.clone())], seconds(132));
    assert_eq!(table.turn("large"), behind("small"));
    put(&mut table, &[new("large", 1), complete(small)], seconds(133));
    assert_eq!(table.turn("large"), Turn::Go, "the large gang does not try again");
}

#[test]
fn a_gang_that_has_lacked_room_for_long_lets_a_new_gang_try_at_once() {
    let mut table = table(&[short(new("large", 1))]);
    table.settle(seconds(100));
    put(&mut table, &[new("small", 2)], seconds(200));
    assert_eq!(table.turn("small"), Turn::Go);
}

/// A gang of the simulated cluster.
#[derive(Debug, Clone)]
struct Gang {
    pods: usize,
    priority: i32,
    arrives: u64,
    runs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pod {
    Undecided,
    Refused,
    Placed,
    /// The pod is being deleted, and still uses its room.
    Leaving,
}

/// What the driver of a gang knows.
#[derive(Debug, Default)]
struct Driver {
    pods: Vec<Pod>,
    ends_at: Option<u64>,
    has_ended: bool,
}

struct Cluster<'a> {
    gangs: &'a [Gang],
    drivers: BTreeMap<usize, Driver>,
    table: Table,
    /// The room at each second. The last one stays.
    room: &'a [usize],
    now: u64,
    random: u64,
}

impl Cluster<'_> {
    fn room(&self) -> usize {
        let at = usize::try_from(self.now / 20).expect("a small number").min(self.room.len() - 1);
        self.room[at]
    }

    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.random >> 33).expect("a small number") % below.max(1)
    }

    fn post(&mut self, index: usize) -> Turn {
        let (gang, driver) = (&self.gangs[index], &self.drivers[&index]);
        let decided = driver.pods.iter().filter(|pod| matches!(pod, Pod::Placed | Pod::Refused)).count();
        let placed = driver.pods.iter().filter(|pod| **pod == Pod::Placed).count();
        let is_complete = placed == gang.pods;
        let need = Need {
            is_complete,
            is_undecided: decided < gang.pods,
            is_gated: false,
            lacking: if driver.pods.contains(&Pod::Refused) && !is_complete {
                resources(&["cpu"])
            } else {
                Resources::new()
            },
        };
        let name = format!("gang-{index}");
        let rank = Rank { priority: Reverse(gang.priority), accepted_at: UnixMillis(gang.arrives), uid: name.clone() };
        let need = (driver.ends_at.is_none()).then_some(need);
        let holds = !driver.pods.is_empty();
        let post =
            Post { name: name.parse().expect("a valid name"), rank, asks: resources(&["cpu", "pods"]), holds, need };
        if !self.table.is_settled(&post, seconds(self.now)) {
            self.table.post(post, seconds(self.now));
            self.table.settle(seconds(self.now));
        }
        self.table.turn(&name)
    }

    /// Lets the driver of one gang act as a master's driver does.
    fn drive(&mut self, index: usize) {
        let turn = self.post(index);
        let (wanted, now, runs) = (self.gangs[index].pods, self.now, self.gangs[index].runs);
        let driver = self.drivers.get_mut(&index).expect("the gang has arrived");
        if driver.ends_at.is_some_and(|at| at <= now) {
            (driver.pods, driver.has_ended) = (vec![], true);
            self.table.remove(&format!("gang-{index}"));
            return;
        }
        if driver.ends_at.is_some() {
            return;
        }
        if driver.pods.len() == wanted && driver.pods.iter().all(|pod| *pod == Pod::Placed) {
            driver.ends_at = Some(now + runs);
            self.post(index);
            return;
        }
        match turn {
            Turn::Go | Turn::Minimum if !driver.pods.contains(&Pod::Leaving) => {
                driver.pods.resize(wanted, Pod::Undecided);
            }
            Turn::Queue(_) => {
                driver.pods.retain(|pod| matches!(pod, Pod::Placed | Pod::Leaving));
                driver.pods.iter_mut().for_each(|pod| *pod = Pod::Leaving);
            }
            Turn::Go | Turn::Minimum | Turn::Hold(_) => {}
        }
    }

    /// Decides on up to this number of pods, one by one in random order.
    fn schedule(&mut self, decisions: usize) {
        for _ in 0..decisions {
            let used =
                |driver: &Driver| driver.pods.iter().filter(|pod| matches!(pod, Pod::Placed | Pod::Leaving)).count();
            let free = self.room().saturating_sub(self.drivers.values().map(used).sum());
            let waiting: Vec<(usize, usize)> = self
                .drivers
                .iter()
                .flat_map(|(index, driver)| {
                    driver.pods.iter().enumerate().map(move |(place, pod)| (*index, place, *pod))
                })
                .filter(|(.., pod)| *pod == Pod::Undecided || *pod == Pod::Refused && free > 0)
                .map(|(index, place, _)| (index, place))
                .collect();
            if waiting.is_empty() {
                return;
            }
            let (index, place) = waiting[self.random(waiting.len())];
            self.drivers.get_mut(&index).expect("the gang has arrived").pods[place] =
                if free > 0 { Pod::Placed } else { Pod::Refused };
        }
    }

    /// Ends the deletion of some pods.
    fn remove_leaving(&mut self) {
        let chance = self.random(3);
        for driver in self.drivers.values_mut() {
            if chance > 0 {
                driver.pods.retain(|pod| *pod != Pod::Leaving);
            }
        }
    }

    fn second(&mut self) {
        for (index, gang) in self.gangs.iter().enumerate() {
            if gang.arrives == self.now {
                self.drivers.insert(index, Driver::default());
            }
        }
        for _ in 0..3 {
            let mut active: Vec<usize> =
                self.drivers.iter().filter(|(_, driver)| !driver.has_ended).map(|(index, _)| *index).collect();
            while !active.is_empty() {
                let next = self.random(active.len());
                let index = active.swap_remove(next);
                self.drive(index);
            }
            let decisions = self.random(8);
            self.schedule(decisions);
        }
        self.remove_leaving();
        self.now += 1;
    }
}

fn any_gang() -> impl Strategy<Value = Gang> {
    let pods = prop_oneof![8 => 1..6_usize, 1 => 6..14_usize];
    let priority = prop_oneof![5 => Just(0), 1 => -3..4_i32];
    (pods, priority, 0..60_u64, 1..30_u64).prop_map(|(pods, priority, arrives, runs)| Gang {
        pods,
        priority,
        arrives,
        runs,
    })
}

/// Lets the gangs run. Returns the gangs that fit alone into the final room, and have not run.
fn left_over(gangs: &[Gang], room: &[usize], random: u64) -> Vec<usize> {
    let mut table = Table::default();
    table.open();
    let mut cluster = Cluster { gangs, drivers: BTreeMap::new(), table, room, now: 0, random };
    let last = *room.last().expect("no room");
    let fits = |index: &usize| gangs[*index].pods <= last;
    let longest = gangs.iter().map(|gang| gang.runs + GIVE_WAY_AFTER.as_secs() + 30).sum::<u64>();
    let limit = 60 + 20 * room.len() as u64 + 2 * longest;
    let left = |cluster: &Cluster<'_>| -> Vec<usize> {
        let has_run = |index: &usize| cluster.drivers.get(index).is_some_and(|driver| driver.has_ended);
        (0..gangs.len()).filter(fits).filter(|index| !has_run(index)).collect()
    };
    while cluster.now < limit && !left(&cluster).is_empty() {
        cluster.second();
    }
    left(&cluster)
}

/// The number of cases, of 25 gangs each on the average, for 10,000 arrivals.
const CASES: u32 = 400;

proptest! {
    #![proptest_config(cases(CASES))]

    #[test]
    fn every_gang_that_fits_alone_runs_in_the_end(
        gangs in vec(any_gang(), 1..50), room in vec(0..12_usize, 0..6), last in 5..10_usize, random in any::<u64>()
    ) {
        let room: Vec<usize> = room.into_iter().chain([last]).collect();
        let left = left_over(&gangs, &room, random);
        prop_assert!(left.is_empty(), "these gangs fit, and never run: {left:?}");
    }
}

#[test]
fn fifty_gangs_that_arrive_at_once_all_run() {
    let gang = |pods: usize| Gang { pods, priority: 0, arrives: 0, runs: 5 };
    let gangs: Vec<Gang> = (0..50).map(|index| gang(1 + index % 4)).collect();
    assert_eq!(left_over(&gangs, &[4], 7), [0_usize; 0]);
}
