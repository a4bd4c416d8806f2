//! Ports for TensorFlow on the master's machine.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use listener::ReservedPort;
use protocol::routes::LOCAL_TENSORFLOW_PORTS;

/// The lowest port to claim. By default, the ports that Linux chooses itself begin at [`EPHEMERAL`].
const LOWEST: u16 = LOCAL_TENSORFLOW_PORTS.start;
const EPHEMERAL: u16 = LOCAL_TENSORFLOW_PORTS.end;

/// Claims ports of this machine.
#[derive(Debug)]
pub(super) struct Ports {
    next: AtomicU16,
}

impl Ports {
    /// Begins at a port that depends on `seed`, so that two masters seldom try the same ports.
    pub(super) fn new(seed: u32) -> Self {
        let span = u32::from(EPHEMERAL - LOWEST);
        let offset = u16::try_from(seed.wrapping_mul(0x9E37_79B1) % span).unwrap_or(0);
        Self { next: AtomicU16::new(LOWEST + offset) }
    }

    /// Claims the next free port.
    ///
    /// # Errors
    /// Fails if every port of the range is in use, or if a socket cannot be bound for another reason.
    pub(super) fn claim(&self) -> io::Result<ReservedPort> {
        ReservedPort::first_free((LOWEST..EPHEMERAL).map(|_| self.advance()))
    }

    fn advance(&self) -> u16 {
        let after = |port: u16| Some(if port + 1 == EPHEMERAL { LOWEST } else { port + 1 });
        match self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after) {
            Ok(port) | Err(port) => port,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn only_a_server_with_so_reuseaddr_can_bind_a_claimed_port() {
        let ports = Ports::new(1);
        let claim = ports.claim().expect("no port is free");
        let taken = ReservedPort::first_free([claim.port()]).map(|claim| claim.port()).map_err(|error| error.kind());
        assert_eq!(taken, Err(io::ErrorKind::AddrInUse));
        // The standard library's listener sets SO_REUSEADDR, as gRPC's does.
        let server = TcpListener::bind((Ipv4Addr::UNSPECIFIED, claim.port())).expect("cannot listen");
        assert_eq!(server.local_addr().expect("the server has no address").port(), claim.port());
    }

    #[test]
    fn claimed_ports_are_distinct_and_below_the_ephemeral_range() {
        let (one, two) = (Ports::new(7), Ports::new(7));
        let claims: Vec<ReservedPort> =
            (0..40).map(|n| if n % 2 == 0 { one.claim() } else { two.claim() }).map(Result::unwrap).collect();
        let mut numbers: Vec<u16> = claims.iter().map(ReservedPort::port).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 40);
        assert!(numbers.iter().all(|port| (LOWEST..EPHEMERAL).contains(port)), "{numbers:?}");
    }

    #[test]
    fn the_search_wraps_at_the_end_of_the_range() {
        let ports = Ports { next: AtomicU16::new(EPHEMERAL - 1) };
        assert_eq!([ports.advance(), ports.advance()], [EPHEMERAL - 1, LOWEST]);
    }
}
