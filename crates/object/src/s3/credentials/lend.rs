//! Keys that a program, a container's agent or an instance's metadata service (IMDSv2) lends, in JSON.

use super::super::clock;
use super::super::http::Http;
use super::super::profile::Environment;
use super::super::sign::{Keys, Secret};
use super::{Lent, Refused};
use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Most that an answer can be long.
const MOST: usize = 1 << 20;
/// Most that a program may take.
const PROCESS: Duration = Duration::from_secs(60);

/// Keys as all three write them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Written {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "SessionToken")]
    token: Option<String>,
    expiration: Option<String>,
}

/// Reads keys; the text of an error does not contain them.
pub(super) fn read(json: &[u8], whose: &str) -> Result<Lent, String> {
    let written: Written = serde_json::from_slice(json).map_err(|error| {
        // What serde says of a wrong value would show it.
        format!(
            "credentials of {whose} cannot be understood (line {}, column {})",
            error.line(),
            error.column()
        )
    })?;
    let until = match &written.expiration {
        Some(text) => {
            Some(clock::iso(text).ok_or_else(|| format!("credentials of {whose}: their end is not a time"))?)
        }
        None => None,
    };
    let keys = Keys {
        id: written.access_key_id,
        secret: Secret::new(written.secret_access_key),
        token: written.token.map(Secret::new),
    };
    Ok(Lent { keys, until })
}

/// Runs a program by the shell, and takes what it prints.
pub(super) async fn process(command: &str) -> Result<Lent, Refused> {
    let wrong = |what: &dyn std::fmt::Display| Refused::Silent(format!("credential_process: {what}"));
    let run = tokio::process::Command::new("/bin/sh").args(["-c", command]).kill_on_drop(true).output();
    let output = tokio::time::timeout(PROCESS, run)
        .await
        .map_err(|_| wrong(&format!("did not end within {} s", PROCESS.as_secs())))?
        .map_err(|error| wrong(&error))?;
    if !output.status.success() {
        return Err(wrong(&output.status));
    }
    Ok(read(&output.stdout, "credential_process")?)
}

/// The agent of a container.
#[derive(Debug)]
pub(super) struct Container {
    uri: Uri,
    /// The token itself, or the file in which it is renewed.
    token: Option<Secret>,
    token_file: Option<PathBuf>,
}

impl Container {
    /// The one that the environment names.
    pub(super) fn of(environment: &Environment) -> Result<Option<Container>, String> {
        let uri = match (
            environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
            environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ) {
            (Some(path), _) => format!("http://169.254.170.2{path}"),
            (None, Some(uri)) => uri.to_owned(),
            (None, None) => return Ok(None),
        };
        let uri: Uri =
            uri.parse().map_err(|error| format!("address of the container's credentials: {error}"))?;
        let host = uri.host().unwrap_or_default();
        // The token and the keys go over this: TLS, this machine, or the addresses of ECS and EKS.
        let own = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "localhost", "[::1]"].contains(&host)
            || host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        if uri.scheme_str() != Some("https") && !own {
            return Err(format!("credentials of a container are not asked of {host} without TLS"));
        }
        Ok(Some(Container {
            uri,
            token: environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(Secret::new),
            token_file: environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from),
        }))
    }

    pub(super) async fn ask(&self, http: &Http) -> Result<Lent, Refused> {
        let mut request = Request::get(self.uri.clone());
        let read_token = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        if let Some(path) = &self.token_file {
            request = request.header("authorization", read_token(path)?.trim());
        } else if let Some(token) = &self.token {
            request = request.header("authorization", token.reveal());
        }
        let json = fetch(http, request, "the container").await?;
        Ok(read(&json, "the container")?)
    }
}

/// The metadata service of an instance, version 2.
#[derive(Debug)]
pub(super) struct Instance {
    endpoint: String,
}

impl Instance {
    /// The one of this machine, unless the environment forbids it.
    pub(super) fn of(environment: &Environment) -> Option<Instance> {
        if environment
            .get("AWS_EC2_METADATA_DISABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            return None;
        }
        let endpoint =
            environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or("http://169.254.169.254");
        Some(Instance { endpoint: endpoint.trim_end_matches('/').to_owned() })
    }

    pub(super) async fn ask(&self, http: &Http) -> Result<Lent, Refused> {
        let whose = "the instance";
        let token = Request::put(format!("{}/latest/api/token", self.endpoint))
            .header("x-aws-ec2-metadata-token-ttl-seconds", "300");
        // Where there is no such service, nothing answers at all.
        let token = tokio::time::timeout(Duration::from_secs(2), fetch(http, token, whose)).await.map_err(|_| {
            let text = "no credentials: neither in the environment (AWS_ACCESS_KEY_ID), nor in a profile (~/.aws/credentials), nor from a metadata \
                        service, which does not answer";
            Refused::Silent(text.to_owned())
        })??;
        let token = String::from_utf8_lossy(&token).trim().to_owned();
        let path = format!("{}/latest/meta-data/iam/security-credentials/", self.endpoint);
        let with_token = |uri: String| Request::get(uri).header("x-aws-ec2-metadata-token", token.as_str());
        let roles = fetch(http, with_token(path.clone()), whose).await?;
        let roles = String::from_utf8_lossy(&roles).into_owned();
        let role = roles.lines().next().map(str::trim).filter(|role| !role.is_empty());
        let role = role.ok_or_else(|| "the instance has no role, and so no credentials".to_owned())?;
        let json =
            fetch(http, with_token(format!("{path}{}", super::super::encode::path(role))), whose).await?;
        Ok(read(&json, whose)?)
    }
}

/// Asks once more where the first answer is none, or an error of the server's.
async fn fetch(http: &Http, request: http::request::Builder, whose: &str) -> Result<Bytes, Refused> {
    let wrong = |what: &dyn std::fmt::Display| format!("credentials of {whose}: {what}");
    let request = request.body(Bytes::new()).map_err(|error| wrong(&error))?;
    let mut last = Refused::Silent(String::new());
    for _ in 0..2 {
        last = match http.send(request.clone(), MOST, None, None).await {
            Ok(answer) if answer.status == StatusCode::OK => return Ok(answer.body),
            Ok(answer)
                if answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS =>
            {
                Refused::Passing(wrong(&answer.status))
            }
            Ok(answer) => return Err(Refused::Final(wrong(&answer.status))),
            Err(error) => Refused::Silent(wrong(&error)),
        };
    }
    Err(last)
}
