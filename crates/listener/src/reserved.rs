//! Reserves ports for a server of another program, which binds them some seconds later. TensorFlow's server always
//! binds every interface, so each replica on a machine needs its own port.
//!
//! A reservation follows the kernel's rules (Linux, `inet_csk_get_port`). First, a socket is bound without SO_REUSEADDR,
//! which fails if the port is in use. Then the socket gets this option. From then on, only a server that sets the option
//! too, as gRPC does, can bind the same port and listen.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::sockopt;
use tokio::net::TcpSocket;

/// Reserved ports that are neighbours. Dropping this value frees them.
#[derive(Debug)]
pub struct ReservedPorts {
    _sockets: Vec<TcpSocket>,
    first: u16,
}

impl ReservedPorts {
    /// Reserves the first `count` of these ports that are free and follow one another.
    ///
    /// # Errors
    /// Fails if there are no such ports, or if a socket cannot be bound for another reason.
    pub fn first_free(ports: impl IntoIterator<Item = u16>, count: u32) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        let (mut sockets, mut first) = (vec![], 0);
        for port in ports {
            if sockets.is_empty() || usize::from(port) != usize::from(first) + sockets.len() {
                sockets.clear();
                first = port;
            }
            match bind(port) {
                Ok(socket) => sockets.push(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    sockets.clear();
                    last = error;
                }
                Err(error) => return Err(error),
            }
            if sockets.len() == count as usize {
                return Ok(Self { _sockets: sockets, first });
            }
        }
        Err(last)
    }

    /// The first port.
    pub fn first(&self) -> u16 {
        self.first
    }
}

/// Binds a port on every interface, like TensorFlow's server: for IPv6 and IPv4, or for IPv4 alone if the machine has no
/// IPv6.
fn bind(port: u16) -> io::Result<TcpSocket> {
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
    Ok(socket)
}
