//! Debian's docker-registry.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{TestImage, digest};

const START_LIMIT: Duration = Duration::from_secs(20);
/// The user `team` with the password `secret`, hashed by bcrypt.
const USERS: &str = "team:$2b$04$7QI4/6AEWJKHgNFCrYCOi.A4eBAlTllB05CUhhJ4QrrO/rtOn5rh2\n";

/// The login that the registry requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secured {
    /// No login.
    No,
    /// The user `team` with the password `secret`.
    ByPassword,
}

/// A running docker-registry. Dropping the value stops it.
pub struct RealRegistry {
    process: Child,
    address: SocketAddr,
    has_tls: bool,
    _folder: tempfile::TempDir,
}

impl RealRegistry {
    /// Starts an empty registry with plain HTTP on the loopback interface.
    ///
    /// # Panics
    /// If docker-registry cannot be started.
    pub fn start(secured: Secured) -> Self {
        Self::start_at(IpAddr::V4(Ipv4Addr::LOCALHOST), secured, None)
    }

    /// Starts an empty registry at this address. `tls` has the files of the certificate and of its key.
    ///
    /// # Panics
    /// If docker-registry cannot be started.
    pub fn start_at(address: IpAddr, secured: Secured, tls: Option<(&Path, &Path)>) -> Self {
        let folder = tempfile::tempdir().expect("no temporary folder");
        let free = TcpListener::bind((address, 0)).and_then(|socket| socket.local_addr());
        let address = free.expect("no free port");
        let data = folder.path().join("data");
        let has_tls = tls.is_some();
        let tls = tls.map_or_else(String::new, |(certificate, key)| {
            format!(", tls: {{certificate: {:?}, key: {:?}}}", certificate.display(), key.display())
        });
        let mut config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\nhttp: {{addr: \"{address}\"{tls}}}\n",
            data.display()
        );
        if secured == Secured::ByPassword {
            let users = folder.path().join("users");
            fs::write(&users, USERS).expect("cannot write the users");
            config += &format!("auth: {{htpasswd: {{realm: test, path: {:?}}}}}\n", users.display());
        }
        fs::write(folder.path().join("config.yml"), config).expect("cannot write the configuration");
        let mut command = Command::new("docker-registry");
        command.args(["serve", "config.yml"]).current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("cannot start docker-registry");
        let begin = Instant::now();
        while let Err(error) = TcpStream::connect(address) {
            assert!(begin.elapsed() < START_LIMIT && error.kind() == io::ErrorKind::ConnectionRefused, "{error}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { process, address, has_tls, _folder: folder }
    }

    /// The host and port. The names of this registry's images begin with them.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Stores an image under this path and tag, such as `mnist:1`. Returns the image's full name.
    pub fn push(&self, name: &str, image: &TestImage) -> String {
        let (path, _) = name.split_once(':').expect("a name has a tag");
        let begun = self.send("POST", &format!("/v2/{path}/blobs/uploads/"), "", &[]);
        let location = begun.lines().find(|line| line.to_ascii_lowercase().starts_with("location:"));
        let location = location.and_then(|line| line.split_once(": ")).map(|(_, url)| url.trim());
        let upload = location.unwrap_or_else(|| panic!("no upload begins: {begun}"));
        let upload = upload.rsplit_once(&self.host()).map_or(upload, |(_, path)| path);
        self.send("PUT", &format!("{upload}&digest={}", digest(&image.config)), "", &image.config);
        self.push_manifest(name, &image.manifest)
    }

    /// Stores a manifest or an index. Returns the image's full name.
    pub fn push_manifest(&self, name: &str, manifest: &[u8]) -> String {
        let (path, tag) = name.split_once(':').expect("a name has a tag");
        let parsed: Value = serde_json::from_slice(manifest).expect("not a manifest");
        let kind = parsed["mediaType"].as_str().expect("a manifest has a type");
        for reference in [tag, &digest(manifest)] {
            self.send("PUT", &format!("/v2/{path}/manifests/{reference}"), kind, manifest);
        }
        format!("{}/{name}", self.host())
    }

    /// Sends a request with curl, which accepts any certificate. Returns the headers of the answer.
    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        let mut curl = Command::new("curl");
        curl.args(["-skif", "-u", "team:secret", "-X", method, "--data-binary", "@-", "-H"]);
        curl.args([&format!("Content-Type: {kind}"), &format!("{scheme}://{}{path}", self.address)]);
        let mut curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cannot start curl");
        let written = curl.stdin.take().expect("stdin is a pipe").write_all(body);
        let answer = curl.wait_with_output().expect("cannot wait for curl");
        let headers = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(written.is_ok() && answer.status.success(), "{method} {path}: {headers}");
        headers
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
