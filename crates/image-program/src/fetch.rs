//! The requests to a registry, with limits for time, size, redirects and the hosts that get the login.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, WWW_AUTHENTICATE};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Certificate, Client, RequestBuilder, StatusCode, Url};
use tokio::time::timeout;
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

use super::address::{Address, PlainHosts, TagOrDigest};
use super::challenge::{self, Challenge};
use super::digest::Digest;
use super::manifest::{self, ImageManifest};
use super::{Login, LookUpError};

/// Maximum time for an answer, with its redirects and its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes. Registries refuse larger manifests (distribution, `maxManifestBodySize`).
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// Maximum number of redirects of a request.
const REDIRECTS_MAX: usize = 5;
/// The formats of manifests that are read.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";
const ANY: &str = "*/*";
/// The header with the digest of a manifest.
const DIGEST: &str = "docker-content-digest";

/// The HTTP client for all registries.
pub(crate) struct Http {
    /// For registries that use HTTPS. Uses the proxy of the environment.
    proxied: Client,
    /// For registries that use plain HTTP. Uses no proxy, because these registries are near.
    direct: Client,
    plain: PlainHosts,
}

impl Http {
    pub(crate) fn new(plain: PlainHosts) -> Result<Self, reqwest::Error> {
        // An error means that a provider of cryptography is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let roots: Vec<Certificate> =
            TLS_SERVER_ROOT_CERTS.iter().map(|root| Certificate::from_der(root)).collect::<Result<_, _>>()?;
        let builder = || {
            let plain = plain.clone();
            Client::builder()
                .user_agent(concat!("muster/", env!("CARGO_PKG_VERSION")))
                // The certificates of this machine count too.
                .tls_certs_merge(roots.clone())
                .redirect(Policy::custom(move |attempt| redirect(attempt, &plain)))
        };
        Ok(Self { proxied: builder().build()?, direct: builder().no_proxy().build()?, plain })
    }

    fn get(&self, url: Url) -> RequestBuilder {
        let client = if url.scheme() == "http" { &self.direct } else { &self.proxied };
        client.get(url)
    }
}

/// Follows each redirect to HTTPS. Follows a redirect to plain HTTP only if all hosts so far may use plain HTTP.
/// reqwest removes the login from requests to another host or port.
fn redirect(attempt: Attempt<'_>, plain: &PlainHosts) -> Action {
    let is_secure = attempt.url().scheme() == "https";
    let may_be_plain = attempt.previous().iter().chain([attempt.url()]).all(|url| plain.has(&authority(url)));
    if attempt.previous().len() > REDIRECTS_MAX {
        attempt.error("too many redirects")
    } else if is_secure || may_be_plain {
        attempt.follow()
    } else {
        attempt.error("it redirects to plain HTTP")
    }
}

/// The host of an address, with its port if the address has one.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The answer to a request.
struct RegistryAnswer {
    /// The address that answered, after redirects.
    url: Url,
    status: StatusCode,
    headers: HeaderMap,
    /// Empty if the status is not 200.
    body: Vec<u8>,
}

/// How requests to the registry are authorised.
enum Authorization<'a> {
    Basic(&'a Login),
    Bearer(String),
}

/// The requests for one image.
pub(crate) struct Session<'a> {
    http: &'a Http,
    address: &'a Address,
    login: Option<&'a Login>,
    /// What the registry wants, after its first challenge.
    authorization: Option<Authorization<'a>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(http: &'a Http, address: &'a Address, login: Option<&'a Login>) -> Self {
        Self { http, address, login, authorization: None }
    }

    /// The manifest at this tag or digest.
    pub(crate) async fn manifest(&mut self, place: &TagOrDigest) -> Result<ImageManifest, LookUpError> {
        let RegistryAnswer { headers, body, .. } = self.document("manifests", &place.to_string(), MANIFESTS).await?;
        let named = headers.get(DIGEST).and_then(|digest| digest.to_str().ok());
        match (place, named) {
            (TagOrDigest::Digest(digest), _) => self.check(&body, *digest)?,
            (TagOrDigest::Tag(_), Some(digest)) => self.check(&body, Digest::read(digest)?)?,
            (TagOrDigest::Tag(_), None) => {}
        }
        manifest::read(&body).ok_or_else(|| self.passing("sent a manifest in an unknown format"))
    }

    /// The blob with this digest.
    pub(crate) async fn blob(&mut self, digest: Digest) -> Result<Vec<u8>, LookUpError> {
        let RegistryAnswer { body, .. } = self.document("blobs", &digest.to_string(), ANY).await?;
        self.check(&body, digest)?;
        Ok(body)
    }

    /// A document of the image's path.
    async fn document(&mut self, kind: &str, name: &str, accept: &str) -> Result<RegistryAnswer, LookUpError> {
        let Address { host, path, place: _ } = self.address;
        let scheme = if self.http.plain.has(host) { "http" } else { "https" };
        let url = Url::parse(&format!("{scheme}://{host}/v2/{path}/{kind}/{name}"))
            .map_err(|_| LookUpError::Unusable(format!("{host} is not the address of a registry")))?;
        let answer = self.ask(&url, accept).await?;
        // A host to which the registry redirects must not choose who gets the login.
        let is_challenged = answer.status == StatusCode::UNAUTHORIZED && answer.url.origin() == url.origin();
        if !is_challenged || self.authorization.is_some() {
            return expect_ok(host, answer);
        }
        self.authorization = self.authorize(&answer).await?;
        match self.authorization {
            Some(_) => expect_ok(host, self.ask(&url, accept).await?),
            None => expect_ok(host, answer),
        }
    }

    async fn ask(&self, url: &Url, accept: &str) -> Result<RegistryAnswer, LookUpError> {
        let request = self.http.get(url.clone()).header(ACCEPT, accept);
        let request = match &self.authorization {
            Some(Authorization::Basic(login)) => request.basic_auth(&login.user, Some(&login.password)),
            Some(Authorization::Bearer(token)) => request.bearer_auth(token),
            None => request,
        };
        send(request, &self.address.host).await
    }

    /// Answers the challenge of a registry. `None` if that needs a login, and there is none.
    async fn authorize(&self, refused: &RegistryAnswer) -> Result<Option<Authorization<'a>>, LookUpError> {
        let headers = refused.headers.get_all(WWW_AUTHENTICATE).iter();
        match challenge::read(headers.filter_map(|header| header.to_str().ok())) {
            Some(Challenge::Bearer(server)) => Ok(Some(Authorization::Bearer(self.token(server).await?))),
            Some(Challenge::Basic) => Ok(self.login.map(Authorization::Basic)),
            None => Ok(None),
        }
    }

    /// A token for the image's path from the token server of its registry.
    async fn token(&self, server: Url) -> Result<String, LookUpError> {
        let mut server = server;
        let host = authority(&server);
        let may_be_plain = [&self.address.host, &host].into_iter().all(|host| self.http.plain.has(host));
        if server.scheme() != "https" && !(server.scheme() == "http" && may_be_plain) {
            return Err(self.passing(&format!("names the token server {host}, which does not use HTTPS")));
        }
        server.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.address.path));
        let request = self.http.get(server);
        let request = match self.login {
            Some(login) => request.basic_auth(&login.user, Some(&login.password)),
            None => request,
        };
        let answer = expect_ok(&host, send(request, &host).await?)?;
        challenge::token(&answer.body).ok_or_else(|| passing(&host, "sent no token"))
    }

    /// Checks that these bytes have this digest.
    fn check(&self, body: &[u8], digest: Digest) -> Result<(), LookUpError> {
        if digest.is_of(body) {
            return Ok(());
        }
        Err(self.passing(&format!("sent other bytes than those with the digest {digest}")))
    }

    fn passing(&self, reason: &str) -> LookUpError {
        passing(&self.address.host, reason)
    }
}

fn passing(host: &str, reason: &str) -> LookUpError {
    LookUpError::Passing { host: host.to_owned(), reason: reason.to_owned() }
}

/// Sends a request, and reads the answer within the limits. Reads only a body that is used.
async fn send(request: RequestBuilder, host: &str) -> Result<RegistryAnswer, LookUpError> {
    let failed = |error: reqwest::Error| passing(host, &format!("could not be asked: {}", innermost(&error)));
    let work = async {
        let mut response = request.send().await.map_err(failed)?;
        let (url, status, headers) = (response.url().clone(), response.status(), response.headers().clone());
        let mut body = vec![];
        while status == StatusCode::OK
            && let Some(piece) = response.chunk().await.map_err(failed)?
        {
            if body.len() + piece.len() > ANSWER_MAX {
                return Err(LookUpError::Unusable(format!("{host} sent more than 4 MiB")));
            }
            body.extend_from_slice(&piece);
        }
        Ok(RegistryAnswer { url, status, headers, body })
    };
    let late = passing(host, &format!("did not answer within {} s", ANSWER_TIMEOUT.as_secs()));
    timeout(ANSWER_TIMEOUT, work).await.unwrap_or(Err(late))
}

/// Returns the answer if its status is 200, else an error.
fn expect_ok(host: &str, answer: RegistryAnswer) -> Result<RegistryAnswer, LookUpError> {
    match answer.status {
        StatusCode::OK => Ok(answer),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
            Err(LookUpError::Refused { host: host.to_owned(), status: answer.status.as_u16() })
        }
        other => Err(passing(host, &format!("answered {other}"))),
    }
}

/// The innermost cause. The library's errors repeat their causes, and contain the address of the request.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
