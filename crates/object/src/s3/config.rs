//! Which bucket, where it is, and how to speak to it.

use super::http::Patience;
use super::profile::{Environment, Profiles};
use super::sign::Keys;
use crate::store::Abilities;
use ::http::Uri;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// Where the keys come from.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// The usual chain of environment, profile files, web identity, container and instance.
    #[default]
    Chain,
    /// Requests are not signed.
    Anonymous,
    /// These.
    Fixed(Keys),
}

/// Whether the hash of a payload is part of the signature. Hashing costs more processor time than all else that is done for an upload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Where nothing else protects it from being changed on its way: over plain HTTP to another machine; and what is no data of files.
    #[default]
    Auto,
    /// Always.
    Signed,
    /// Never; the checksum still tells accidents.
    Unsigned,
}

/// What a client is to know. [`Config::new`] has defaults for all but the bucket.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the bucket.
    pub bucket: String,
    /// What all keys begin with: nothing, or a path with a slash at its end.
    pub prefix: String,
    /// Address of the store, `http://` or `https://`; `None`: Amazon's, of the region.
    pub endpoint: Option<String>,
    /// Region of the bucket; `None`: us-east-1, unless the store names another.
    pub region: Option<String>,
    /// Whether the bucket stands in the path of a request and not in the name of the host; `None`: with an endpoint or a dot in its name.
    pub path_style: Option<bool>,
    /// Where the keys come from.
    pub credentials: Source,
    /// Whose certificates are trusted, in a PEM file; `None`: the system's authorities.
    pub authorities: Option<PathBuf>,
    /// Whether payloads are signed.
    pub payload: Payload,
    /// Whether anything may be written, and so whether opening finds out by writing what the store can do.
    pub writable: bool,
    /// What the store can do, where it is known: then it is not asked.
    pub abilities: Option<Abilities>,
    /// Most requests at one time.
    pub parallel: usize,
    /// How long to wait for one request.
    pub patience: Patience,
    /// How long to try a call again after a failure.
    pub deadline: Duration,
    /// As `deadline`, while the store has not answered anything yet: then the cause is mostly a wrong address.
    pub first: Duration,
    /// The environment for the chain of credentials.
    pub environment: Environment,
}

impl Config {
    /// A bucket by its URL, `s3://bucket` or `s3://bucket/prefix`, and what the environment and the profile say of its store:
    /// `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_CA_BUNDLE`, `AWS_PROFILE`. The text of an error
    /// says what is wrong.
    pub fn new(url: &str, environment: Environment) -> Result<Config, String> {
        let rest = url
            .strip_prefix("s3://")
            .ok_or_else(|| format!("{url}: not of the form s3://BUCKET[/PREFIX]"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.is_empty() || bucket.len() > 255 || !bucket.bytes().all(fits) {
            return Err(format!("{url}: {bucket:?} cannot be the name of a bucket"));
        }
        let prefix = match prefix.trim_end_matches('/') {
            "" => String::new(),
            path => format!("{path}/"),
        };
        if prefix.len() > 1000 {
            return Err(format!("{url}: prefix is too long for keys behind it"));
        }
        let profiles = Profiles::load(&environment)?;
        if let Some(name) = environment.asked_profile()
            && profiles.get(name).is_none()
        {
            return Err(format!("there is no profile {name} (in ~/.aws/config or ~/.aws/credentials)"));
        }
        let profile = profiles.get(environment.named_profile().unwrap_or("default"));
        let setting = |variables: &[&str], name: &str| {
            let set = variables.iter().find_map(|variable| environment.get(variable));
            set.or_else(|| profile.and_then(|profile| profile.get(name).map(String::as_str)))
                .map(str::to_owned)
        };
        let endpoint =
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].iter().find_map(|name| environment.get(name));
        let endpoint = endpoint.or_else(|| profiles.endpoint(profile?)).map(str::to_owned);
        let region = setting(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region");
        let authorities = setting(&["AWS_CA_BUNDLE"], "ca_bundle").map(PathBuf::from);
        let authorities = match authorities {
            Some(path) => Some(std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))?),
            None => None,
        };
        Ok(Config {
            bucket: bucket.to_owned(),
            prefix,
            endpoint,
            region,
            path_style: None,
            credentials: Source::default(),
            authorities,
            payload: Payload::default(),
            writable: true,
            abilities: None,
            parallel: 64,
            patience: Patience { connect: Duration::from_secs(5), silence: Duration::from_secs(20) },
            deadline: Duration::from_secs(120),
            first: Duration::from_secs(10),
            environment,
        })
    }
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `http` or `https`.
    pub scheme: String,
    /// Host and port, with the bucket where it belongs there.
    pub authority: String,
    /// What the path begins with: nothing, or the endpoint's own path and the bucket, encoded, without a slash at the end.
    pub base: String,
}

impl Place {
    /// The place of a bucket in a region. The region counts only where there is no endpoint.
    pub fn new(config: &Config, region: &str) -> Result<Place, String> {
        let bucket = &config.bucket;
        let path_style = config.path_style.unwrap_or(config.endpoint.is_some() || bucket.contains('.'));
        let endpoint = match &config.endpoint {
            Some(endpoint) => endpoint.clone(),
            None if region.starts_with("cn-") => format!("https://s3.{region}.amazonaws.com.cn"),
            None => format!("https://s3.{region}.amazonaws.com"),
        };
        let wrong = |what: &str| format!("endpoint {endpoint}: {what}");
        let uri: Uri = endpoint.parse().map_err(|error| wrong(&format!("{error}")))?;
        let scheme = uri.scheme_str().filter(|scheme| ["http", "https"].contains(scheme));
        let scheme = scheme.ok_or_else(|| wrong("begins neither with http:// nor with https://"))?;
        let authority = uri.authority().ok_or_else(|| wrong("has no host"))?.as_str();
        if authority.contains('@') || uri.query().is_some() {
            return Err(wrong("has a user or a query"));
        }
        // A port that is the scheme's own is not sent, and so must not be signed.
        let own = if scheme == "http" { ":80" } else { ":443" };
        let authority = authority.strip_suffix(own).unwrap_or(authority);
        let path = uri.path().trim_end_matches('/');
        Ok(match path_style {
            true => Place {
                scheme: scheme.into(),
                authority: authority.into(),
                base: format!("{path}/{}", super::encode::path(bucket)),
            },
            false => {
                Place { scheme: scheme.into(), authority: format!("{bucket}.{authority}"), base: path.into() }
            }
        })
    }

    /// Whether payloads need no signature of their own: nobody can change them on their way.
    pub fn protects(&self) -> bool {
        let authority = &self.authority;
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        let local = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
        self.scheme == "https" || local || host == "localhost" || host == "[::1]" || authority == "[::1]"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str, variables: &[(&str, &str)]) -> Config {
        Config::new(url, Environment::of(variables.iter().copied())).unwrap()
    }

    #[test]
    fn a_url_names_bucket_and_prefix() {
        let config = config("s3://logs/2026/11//", &[("AWS_REGION", "eu-central-1")]);
        assert_eq!((config.bucket.as_str(), config.prefix.as_str()), ("logs", "2026/11/"));
        assert_eq!(config.region.as_deref(), Some("eu-central-1"));
        for wrong in ["logs", "s3://", "s3:///x", "s3://a b/", "http://host/bucket"] {
            assert!(Config::new(wrong, Environment::default()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_bucket_stands_in_the_host_or_in_the_path() {
        let place = |config: &Config| Place::new(config, "eu-west-1").unwrap();
        let amazon = place(&config("s3://logs", &[]));
        assert_eq!(
            (amazon.authority.as_str(), amazon.base.as_str()),
            ("logs.s3.eu-west-1.amazonaws.com", "")
        );
        let dotted = place(&config("s3://logs.example", &[]));
        assert_eq!(
            (dotted.authority.as_str(), dotted.base.as_str()),
            ("s3.eu-west-1.amazonaws.com", "/logs.example")
        );
        let mut own = config("s3://logs", &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/s3/")]);
        assert_eq!(
            (place(&own).authority.as_str(), place(&own).base.as_str()),
            ("127.0.0.1:9000", "/s3/logs")
        );
        own.path_style = Some(false);
        own.endpoint = Some("https://store.example:443".into());
        assert_eq!(place(&own).authority, "logs.store.example");
        for wrong in ["ftp://host", "host:80", "http://user@host", "http://host/?a=b"] {
            own.endpoint = Some(wrong.into());
            assert!(Place::new(&own, "").is_err(), "{wrong}");
        }
    }

    #[test]
    fn payloads_are_left_unsigned_only_where_they_are_protected() {
        let protects = |endpoint: &str| {
            let mut config = config("s3://logs", &[]);
            config.endpoint = Some(endpoint.into());
            Place::new(&config, "").unwrap().protects()
        };
        for safe in ["https://store.example", "http://127.0.0.1:9000", "http://localhost:1", "http://[::1]:1"]
        {
            assert!(protects(safe), "{safe}");
        }
        for open in ["http://store.example", "http://127.example", "http://10.0.0.1:9000"] {
            assert!(!protects(open), "{open}");
        }
    }
}
