//! Keys of roles, lent by the security token service (STS): AssumeRole and AssumeRoleWithWebIdentity.

use super::super::http::{Broken, Http};
use super::super::profile::Environment;
use super::super::sign::{Keys, Secret, Signing, sha256};
use super::super::{clock, encode, xml};
use super::{Lent, Refused};
use bytes::Bytes;
use http::{Request, StatusCode};
use std::path::PathBuf;
use std::time::SystemTime;

/// Most that an answer can be long.
const MOST: usize = 1 << 20;
/// Codes of refusals that pass, whatever their status is.
const PASSING: [&str; 6] = [
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "InternalFailure",
    "IDPCommunicationError",
];
/// How the session is called where nobody said it.
const SESSION: &str = "freehold";

/// The service, and the region that requests to it are signed for.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    url: String,
    region: String,
}

/// The service of a region, or the one that the environment names.
pub(super) fn endpoint(environment: &Environment, region: &str) -> Endpoint {
    let url = match environment.get("AWS_ENDPOINT_URL_STS") {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None if region.starts_with("cn-") => format!("https://sts.{region}.amazonaws.com.cn"),
        None => format!("https://sts.{region}.amazonaws.com"),
    };
    Endpoint { url, region: region.to_owned() }
}

/// A role that a token from elsewhere opens.
#[derive(Debug)]
pub(super) struct Web {
    endpoint: Endpoint,
    role: String,
    session: Option<String>,
    file: PathBuf,
}

impl Web {
    pub(super) fn new(endpoint: Endpoint, role: String, session: Option<String>, file: PathBuf) -> Web {
        Web { endpoint, role, session, file }
    }

    pub(super) async fn ask(&self, http: &Http) -> Result<Lent, Refused> {
        // The file is renewed by whoever made it: it is read each time.
        let token = std::fs::read_to_string(&self.file)
            .map_err(|error| format!("{}: {error}", self.file.display()))?;
        let form = encode::sorted(&[
            ("Action", "AssumeRoleWithWebIdentity"),
            ("Version", "2011-06-15"),
            ("RoleArn", &self.role),
            ("RoleSessionName", self.session.as_deref().unwrap_or(SESSION)),
            ("WebIdentityToken", token.trim()),
        ]);
        ask(http, &self.endpoint, &self.role, form, None).await
    }
}

/// A role that other keys open.
#[derive(Debug)]
pub(super) struct Role {
    endpoint: Endpoint,
    role: String,
    session: Option<String>,
    external: Option<String>,
}

impl Role {
    pub(super) fn new(
        endpoint: Endpoint,
        role: String,
        session: Option<String>,
        external: Option<String>,
    ) -> Role {
        Role { endpoint, role, session, external }
    }

    pub(super) async fn ask(&self, http: &Http, keys: &Keys) -> Result<Lent, Refused> {
        let mut form = vec![
            ("Action", "AssumeRole"),
            ("Version", "2011-06-15"),
            ("RoleArn", self.role.as_str()),
            ("RoleSessionName", self.session.as_deref().unwrap_or(SESSION)),
        ];
        form.extend(self.external.as_deref().map(|id| ("ExternalId", id)));
        ask(http, &self.endpoint, &self.role, encode::sorted(&form), Some(keys)).await
    }
}

/// Sends a form, signed where there are keys, and reads the keys that come.
async fn ask(
    http: &Http,
    endpoint: &Endpoint,
    role: &str,
    form: String,
    keys: Option<&Keys>,
) -> Result<Lent, Refused> {
    let wrong = |what: &dyn std::fmt::Display| format!("role {role}: {what}");
    let url = format!("{}/", endpoint.url);
    let content = "application/x-www-form-urlencoded";
    let mut request = Request::post(&url).header("content-type", content);
    if let Some(keys) = keys {
        let uri: http::Uri = url.parse().map_err(|error| wrong(&error))?;
        let host = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let at = clock::stamp(SystemTime::now(), 0);
        let mut headers = vec![("content-type", content), ("host", host), ("x-amz-date", at.as_str())];
        headers.extend(keys.token.as_ref().map(|token| ("x-amz-security-token", token.reveal())));
        let signing = Signing {
            method: "POST",
            path: uri.path(),
            query: "",
            headers: &headers,
            payload: &sha256(form.as_bytes()),
            at: &at,
            region: &endpoint.region,
            service: "sts",
        };
        let authorization = signing.authorization(keys);
        request = request.header("x-amz-date", at.as_str()).header("authorization", authorization);
        if let Some(token) = &keys.token {
            request = request.header("x-amz-security-token", token.reveal());
        }
    }
    let request = request.body(Bytes::from(form)).map_err(|error| wrong(&error))?;
    let answer = http.send(request, MOST, None, None).await.map_err(|error| match error {
        Broken::Certificate(_) | Broken::TooLong(_) => Refused::Final(wrong(&error)),
        Broken::Connect(_) | Broken::Lost(_) => Refused::Passing(wrong(&error)),
    })?;
    if !answer.status.is_success() {
        let body = String::from_utf8_lossy(&answer.body);
        let between = |tag: &str| Some(body.split_once(&format!("<{tag}>"))?.1.split_once('<')?.0.to_owned());
        let code = between("Code").unwrap_or_else(|| answer.status.to_string());
        let text = wrong(&format!("{code} {}", between("Message").unwrap_or_default()));
        let passes = answer.status.is_server_error()
            || answer.status == StatusCode::TOO_MANY_REQUESTS
            || PASSING.contains(&code.as_str());
        return Err(if passes { Refused::Passing(text) } else { Refused::Final(text) });
    }
    let keys = xml::read::<xml::Assumed>(&answer.body).map_err(|error| wrong(&error))?.result.credentials;
    let until = clock::iso(&keys.expiration).ok_or_else(|| wrong(&"the end of its keys is not a time"))?;
    let (id, secret, token) = (keys.access_key_id, keys.secret_access_key, keys.session_token);
    Ok(Lent {
        keys: Keys { id, secret: Secret::new(secret), token: Some(Secret::new(token)) },
        until: Some(until),
    })
}
