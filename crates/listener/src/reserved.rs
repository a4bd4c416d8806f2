//! Reserves a port for a server of another program, which binds the port some seconds later. TensorFlow's server always
//! binds every interface, so each replica on a machine needs its own port.
//!
//! A reservation follows the kernel's rules (Linux, `inet_csk_get_port`). First, a socket is bound without SO_REUSEADDR,
//! which fails if the port is in use. Then the socket gets this option. From then on, only a server that sets the option
//! too, as gRPC does, can bind the same port and listen.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::sockopt;
use tokio::net::TcpSocket;

/// A reserved port. Dropping this value frees the port.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: TcpSocket,
    port: u16,
}

impl ReservedPort {
    /// Reserves the first of these ports that is free.
    ///
    /// # Errors
    /// Fails if every port is in use, or if a socket cannot be bound for another reason.
    pub fn first_free(ports: impl IntoIterator<Item = u16>) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for port in ports {
            match Self::bind(port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    /// Binds a port on every interface, like TensorFlow's server: for IPv6 and IPv4, or for IPv4 alone if the machine has
    /// no IPv6.
    fn bind(port: u16) -> io::Result<Self> {
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
        Ok(Self { _socket: socket, port })
    }

    /// The port's number.
    pub fn port(&self) -> u16 {
        self.port
    }
}
