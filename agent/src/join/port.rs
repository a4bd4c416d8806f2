//! Reserves a port for TensorFlow, in the same way as the master's process back end. First, the socket is bound without
//! SO_REUSEADDR, which fails if the port is in use. Then the socket gets this option. From then on, only a server that
//! sets the option too, such as gRPC's server, can listen on the port (Linux, `inet_csk_get_port`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use protocol::routes::LOCAL_TENSORFLOW_PORTS;
use rustix::net::sockopt;
use tokio::net::TcpSocket;

/// A reserved port. Dropping this value frees the port.
pub(super) struct ReservedPort {
    _socket: TcpSocket,
    port: u16,
}

impl ReservedPort {
    pub(super) fn port(&self) -> NonZeroU16 {
        NonZeroU16::new(self.port).expect("the range does not begin with 0")
    }
}

/// Reserves the first free port.
///
/// # Errors
/// Fails if every port is in use, or if the machine refuses for another reason.
pub(super) fn claim() -> io::Result<ReservedPort> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in LOCAL_TENSORFLOW_PORTS {
        match bind(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            done => return done,
        }
    }
    Err(last)
}

/// Binds a port on every interface, like TensorFlow's server: for IPv6 and IPv4, or for IPv4 alone if the machine has
/// no IPv6.
fn bind(port: u16) -> io::Result<ReservedPort> {
    let socket = match TcpSocket::new_v6() {
        Ok(socket) => {
            sockopt::set_ipv6_v6only(&socket, false)?;
            socket.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
            socket
        }
        Err(_) => {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    Ok(ReservedPort { _socket: socket, port })
}
