//! Ports for TensorFlow on the master's machine.

use std::io;
use std::sync::{Mutex, PoisonError};

use listener::ReservedPorts;
use protocol::routes::LOCAL_TENSORFLOW_PORTS;

/// The lowest port to claim. By default, the ports that Linux chooses itself begin at [`EPHEMERAL`].
const LOWEST: u16 = LOCAL_TENSORFLOW_PORTS.start;
const EPHEMERAL: u16 = LOCAL_TENSORFLOW_PORTS.end;

/// Claims ports of this machine.
#[derive(Debug)]
pub(super) struct Ports {
    next: Mutex<u16>,
}

impl Ports {
    /// Begins at a port that depends on `seed`, so that two masters seldom try the same ports.
    pub(super) fn new(seed: u32) -> Self {
        let span = u32::from(EPHEMERAL - LOWEST);
        let offset = u16::try_from(seed.wrapping_mul(0x9E37_79B1) % span).unwrap_or(0);
        Self { next: Mutex::new(LOWEST + offset) }
    }

    /// Claims the next `count` free ports that are neighbours.
    ///
    /// # Errors
    /// Fails if there are no such ports in the range, or if a socket cannot be bound for another reason.
    pub(super) fn claim(&self, count: u32) -> io::Result<ReservedPorts> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        ReservedPorts::first_free((LOWEST..EPHEMERAL).map(|_| advance(&mut next)), count)
    }
}

/// The next port. After the last one of the range, begins again.
fn advance(next: &mut u16) -> u16 {
    let port = *next;
    *next = if port + 1 == EPHEMERAL { LOWEST } else { port + 1 };
    port
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn only_a_server_with_so_reuseaddr_can_bind_a_claimed_port() {
        let ports = Ports::new(1);
        let claim = ports.claim(1).expect("no port is free");
        let taken =
            ReservedPorts::first_free([claim.first()], 1).map(|claim| claim.first()).map_err(|error| error.kind());
        assert_eq!(taken, Err(io::ErrorKind::AddrInUse));
        // The standard library's listener sets SO_REUSEADDR, as gRPC's does.
        let server = TcpListener::bind((Ipv4Addr::UNSPECIFIED, claim.first())).expect("cannot listen");
        assert_eq!(server.local_addr().expect("the server has no address").port(), claim.first());
    }

    #[test]
    fn claimed_ports_are_distinct_and_below_the_ephemeral_range() {
        let (one, two) = (Ports::new(7), Ports::new(7));
        let claims: Vec<ReservedPorts> =
            (0..40).map(|n| if n % 2 == 0 { one.claim(1) } else { two.claim(1) }).map(Result::unwrap).collect();
        let mut numbers: Vec<u16> = claims.iter().map(ReservedPorts::first).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
        assert!(numbers.iter().all(|port| (LOWEST..EPHEMERAL).contains(port)), "{numbers:?}");
    }

    #[test]
    fn neighbours_are_claimed_together_and_stay_in_the_range() {
        let ports = Ports { next: Mutex::new(EPHEMERAL - 3) };
        let other = ports.claim(1).expect("no port is free");
        let claim = ports.claim(8).expect("no eight ports are free");
        assert!(claim.first() + 8 <= EPHEMERAL && claim.first() != other.first(), "{}", claim.first());
        let is_taken = |port: u16| ReservedPorts::first_free([port], 1).is_err();
        assert!((claim.first()..claim.first() + 8).all(is_taken));
    }

    #[test]
    fn the_search_wraps_at_the_end_of_the_range() {
        let mut next = EPHEMERAL - 1;
        assert_eq!([advance(&mut next), advance(&mut next)], [EPHEMERAL - 1, LOWEST]);
    }
}
