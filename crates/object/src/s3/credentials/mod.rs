//! Keys by the usual chain, renewed before they expire.
//!
//! The first of these that is there is taken, once, when a client is opened: a profile that was asked for by name; keys in the environment; a token for a web identity; the profile
//! (keys, a role with a source, a web identity, a program); a container's credentials; an instance's. Source: "Standardized credential
//! providers" of the AWS SDKs and Tools Reference Guide. Keys are never logged, and `Debug` does not show them.

mod lend;
mod role;

use super::clock;
use super::config::Source;
use super::http::Http;
use super::profile::{Environment, Profile, Profiles};
use super::sign::{Keys, Secret};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Keys that end so soon are renewed.
const EARLY: Duration = Duration::from_secs(300);
/// When renewing failed while the keys are still good, it is tried again after this time.
const AGAIN: Duration = Duration::from_secs(20);
/// How many roles may stand behind each other.
const DEPTH: usize = 4;

/// Keys, and until when they are good.
#[derive(Clone, Debug)]
struct Lent {
    keys: Keys,
    until: Option<SystemTime>,
}

/// Why there are no keys.
#[derive(Debug)]
pub struct Lack {
    /// What is missing, or who did not answer.
    pub text: String,
    /// Another time there may be some.
    pub passes: bool,
}

/// Why whoever lends keys lent none.
#[derive(Debug)]
enum Refused {
    /// They were refused, or nothing says who lends them.
    Final(String),
    /// Who lends them cannot do it now.
    Passing(String),
    /// Who lends them does not answer: if he has lent some before he will again, else he may not be there at all.
    Silent(String),
}

impl From<String> for Refused {
    fn from(text: String) -> Refused {
        Refused::Final(text)
    }
}

/// Where keys come from.
#[derive(Debug)]
enum Origin {
    Fixed(Keys),
    /// Program that prints keys (`credential_process`).
    Process(String),
    /// AssumeRoleWithWebIdentity.
    Web(role::Web),
    /// AssumeRole with the keys of another origin.
    Role(role::Role, Box<Origin>),
    Container(lend::Container),
    Instance(lend::Instance),
}

/// What gives the keys of each request.
#[derive(Debug)]
pub struct Provider {
    /// `None`: requests are not signed.
    origin: Option<Origin>,
    http: Arc<Http>,
    known: Mutex<Option<Lent>>,
    /// Whether there have been any.
    lent: AtomicBool,
    /// One renews at a time; holds when a failed renewal may be tried again.
    renewing: tokio::sync::Mutex<Option<SystemTime>>,
}

impl Provider {
    /// Looks through the chain, without asking anybody yet. `region` is for the service that lends keys of roles.
    pub fn new(
        source: &Source,
        environment: &Environment,
        region: &str,
        http: Arc<Http>,
    ) -> Result<Provider, String> {
        let origin = match source {
            Source::Anonymous => None,
            Source::Fixed(keys) => Some(Origin::Fixed(keys.clone())),
            Source::Chain => Some(chain(environment, region)?),
        };
        let (known, renewing) = (Mutex::new(None), tokio::sync::Mutex::new(None));
        Ok(Provider { origin, http, known, lent: AtomicBool::new(false), renewing })
    }

    /// The keys to sign with now; `None`: requests are not signed.
    pub async fn keys(&self) -> Result<Option<Keys>, Lack> {
        let Some(origin) = &self.origin else { return Ok(None) };
        if let Some(lent) = self.good(EARLY) {
            return Ok(Some(lent.keys));
        }
        let mut not_before = self.renewing.lock().await;
        if let Some(lent) = self.good(EARLY) {
            return Ok(Some(lent.keys));
        }
        let now = SystemTime::now();
        if let (Some(lent), Some(time)) = (self.good(Duration::ZERO), *not_before)
            && now < time
        {
            return Ok(Some(lent.keys));
        }
        match self.ask(origin).await {
            Ok(lent) => {
                *not_before = None;
                *self.known.lock() = Some(lent.clone());
                self.lent.store(true, Relaxed);
                Ok(Some(lent.keys))
            }
            Err(refused) => {
                let (text, passes) = match refused {
                    Refused::Final(text) => (text, false),
                    Refused::Passing(text) => (text, true),
                    Refused::Silent(text) => (text, self.lent.load(Relaxed)),
                };
                let Some(lent) = self.good(Duration::ZERO) else { return Err(Lack { text, passes }) };
                tracing::warn!("credentials could not be renewed, those at hand are still good: {text}");
                *not_before = Some(now + AGAIN);
                Ok(Some(lent.keys))
            }
        }
    }

    /// Forgets the keys if they are `keys`: the store says that they have expired. Whether there can be others.
    pub fn expired(&self, keys: &Keys) -> bool {
        let mut known = self.known.lock();
        if known.as_ref().is_some_and(|lent| lent.keys == *keys) {
            *known = None;
        }
        !matches!(self.origin, None | Some(Origin::Fixed(_)))
    }

    /// The keys at hand, if they are good for longer than `time`.
    fn good(&self, time: Duration) -> Option<Lent> {
        let known = self.known.lock();
        let lent = known.as_ref()?;
        match lent.until {
            Some(until) if clock::left(until, SystemTime::now()) <= time => None,
            _ => Some(lent.clone()),
        }
    }

    async fn ask(&self, origin: &Origin) -> Result<Lent, Refused> {
        match origin {
            Origin::Fixed(keys) => Ok(Lent { keys: keys.clone(), until: None }),
            Origin::Process(command) => lend::process(command).await,
            Origin::Web(web) => web.ask(&self.http).await,
            Origin::Role(role, source) => {
                let keys = Box::pin(self.ask(source)).await?.keys;
                role.ask(&self.http, &keys).await
            }
            Origin::Container(container) => container.ask(&self.http).await,
            Origin::Instance(instance) => instance.ask(&self.http).await,
        }
    }
}

/// The first origin that is there.
fn chain(environment: &Environment, region: &str) -> Result<Origin, String> {
    // What somebody asked for by name comes before what happens to be in the environment.
    let asked = environment.asked_profile().is_some();
    if !asked && let Some(keys) = of_environment(environment)? {
        return Ok(Origin::Fixed(keys));
    }
    let sts = role::endpoint(environment, region);
    if !asked
        && let (Some(file), Some(role)) =
            (environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"), environment.get("AWS_ROLE_ARN"))
    {
        let session = environment.get("AWS_ROLE_SESSION_NAME").map(str::to_owned);
        return Ok(Origin::Web(role::Web::new(sts, role.to_owned(), session, PathBuf::from(file))));
    }
    let profiles = Profiles::load(environment)?;
    let named = environment.named_profile();
    let name = named.unwrap_or("default");
    match profiles.get(name) {
        Some(_) => {
            if let Some(origin) = of_profile(environment, &profiles, name, &sts, DEPTH)? {
                return Ok(origin);
            }
            if named.is_some() {
                return Err(format!("profile {name} says nothing of credentials that can be used"));
            }
        }
        None if named.is_some() => return Err(format!("there is no profile {name}")),
        None => {}
    }
    if let Some(container) = lend::Container::of(environment)? {
        return Ok(Origin::Container(container));
    }
    match lend::Instance::of(environment) {
        Some(instance) => Ok(Origin::Instance(instance)),
        None => Err("no credentials: neither in the environment (AWS_ACCESS_KEY_ID) nor in a profile (~/.aws/credentials)".into()),
    }
}

/// The keys in the environment.
fn of_environment(environment: &Environment) -> Result<Option<Keys>, String> {
    match (environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => Ok(Some(Keys {
            id: id.to_owned(),
            secret: Secret::new(secret),
            token: environment.get("AWS_SESSION_TOKEN").map(Secret::new),
        })),
        (None, None) => Ok(None),
        (Some(_), None) => Err("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not".into()),
        (None, Some(_)) => Err("AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not".into()),
    }
}

/// What a profile says of keys; `None`: nothing.
fn of_profile(
    environment: &Environment,
    profiles: &Profiles,
    name: &str,
    sts: &role::Endpoint,
    depth: usize,
) -> Result<Option<Origin>, String> {
    let profile: &Profile = profiles.get(name).ok_or_else(|| format!("there is no profile {name}"))?;
    let get = |setting: &str| profile.get(setting).map(String::as_str);
    if let Some(arn) = get("role_arn") {
        let session = get("role_session_name").map(str::to_owned);
        if let Some(file) = get("web_identity_token_file") {
            return Ok(Some(Origin::Web(role::Web::new(
                sts.clone(),
                arn.to_owned(),
                session,
                PathBuf::from(file),
            ))));
        }
        if depth == 0 {
            return Err(format!("profile {name}: too many roles behind each other"));
        }
        let source = match (get("source_profile"), get("credential_source")) {
            // A profile may be its own source: then its keys are meant.
            (Some(source), _) if source == name => of_keys(profile).map(Origin::Fixed),
            (Some(source), _) => of_profile(environment, profiles, source, sts, depth - 1)?,
            (None, Some("Environment")) => of_environment(environment)?.map(Origin::Fixed),
            (None, Some("Ec2InstanceMetadata")) => lend::Instance::of(environment).map(Origin::Instance),
            (None, Some("EcsContainer")) => lend::Container::of(environment)?.map(Origin::Container),
            (None, Some(other)) => {
                return Err(format!("profile {name}: credential_source {other} is not known"));
            }
            (None, None) => {
                return Err(format!("profile {name}: role_arn without source_profile or credential_source"));
            }
        };
        let source =
            source.ok_or_else(|| format!("profile {name}: there are no keys to take its role with"))?;
        let external = get("external_id").map(str::to_owned);
        let role = role::Role::new(sts.clone(), arn.to_owned(), session, external);
        return Ok(Some(Origin::Role(role, Box::new(source))));
    }
    if let Some(keys) = of_keys(profile) {
        return Ok(Some(Origin::Fixed(keys)));
    }
    Ok(get("credential_process").map(|command| Origin::Process(command.to_owned())))
}

/// The keys that stand in a profile.
fn of_keys(profile: &Profile) -> Option<Keys> {
    Some(Keys {
        id: profile.get("aws_access_key_id")?.clone(),
        secret: Secret::new(profile.get("aws_secret_access_key")?.as_str()),
        token: profile.get("aws_session_token").map(|token| Secret::new(token.as_str())),
    })
}
