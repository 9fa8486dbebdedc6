//! The way to a store: keys of every place of the chain and their renewal, certificates, wrong regions, wrong clocks, wrong keys. Against services that
//! this test plays; signatures themselves are verified by servers that others wrote (s3_servers.rs).

#[path = "access/service.rs"]
mod service;

use object::s3::{Config, Environment, Patience, S3};
use object::store::{Condition, Store, StoreError};
use service::{Answer, Request, Service, empty_bucket, error, plain};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Opens the bucket, for reading, as a program does in whose environment these variables are, and lists it twice.
fn open(store: &Service, variables: &[(&str, &str)]) -> Result<(), StoreError> {
    let mut environment = Environment::of(variables.iter().copied());
    if environment.get("HOME").is_none() {
        environment = environment.with("HOME", "/nonexistent");
    }
    let mut config = Config::new("s3://bucket", environment).unwrap();
    config.endpoint = Some(store.address.clone());
    config.writable = false;
    config.deadline = Duration::from_secs(2);
    config.patience = Patience { connect: Duration::from_secs(2), silence: Duration::from_secs(2) };
    runtime().block_on(async {
        let store = S3::open(config).await?;
        store.list("", false, None).await.map(drop)
    })
}

/// A profile that was asked for by name comes before keys in variables, and must be there.
#[test]
fn a_profile_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    std::fs::write(&file, "[other]\naws_access_key_id = OTHER\naws_secret_access_key = s\n").unwrap();
    let variables: Vec<_> =
        KEYS.into_iter().chain([("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())]).collect();
    let environment =
        |name| Environment::of(variables.iter().copied()).with("HOME", "/nonexistent").with_profile(name);
    let store = takes_all();
    let mut config = Config::new("s3://bucket", environment("other")).unwrap();
    config.endpoint = Some(store.address.clone());
    config.writable = false;
    runtime().block_on(S3::open(config)).unwrap();
    let authorization = store.seen()[0].header("authorization").to_owned();
    assert!(authorization.contains("Credential=OTHER/"), "{authorization}");
    let missing = Config::new("s3://bucket", environment("nobody")).unwrap_err();
    assert!(missing.contains("no profile nobody"), "{missing}");
}

/// A store that takes whoever comes.
fn takes_all() -> Service {
    Service::start(|_| empty_bucket())
}

/// That all requests were signed with this key, and had its token.
#[track_caller]
fn signed(store: &Service, id: &str, token: &str) {
    let seen = store.seen();
    assert_eq!(seen.len(), 2);
    for request in seen {
        let authorization = request.header("authorization");
        assert!(authorization.starts_with(&format!("AWS4-HMAC-SHA256 Credential={id}/")), "{authorization}");
        assert_eq!(request.header("x-amz-security-token"), token);
        assert_eq!(authorization.contains("x-amz-security-token"), !token.is_empty(), "it is signed");
    }
}

fn time(after: Duration) -> String {
    let at = jiff::Timestamp::try_from(SystemTime::now() + after).unwrap();
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

const HOUR: Duration = Duration::from_secs(3600);

fn json(id: &str, good_for: Duration) -> String {
    let end = time(good_for);
    format!(r#"{{"AccessKeyId":"{id}","SecretAccessKey":"lent","Token":"{id}-token","Expiration":"{end}"}}"#)
}

/// The metadata service of an instance: nothing without a token of version 2.
fn instance(id: &'static str, good_for: Duration) -> Service {
    Service::start(instance_as_asked(id, good_for))
}

fn instance_as_asked(
    id: &'static str,
    good_for: Duration,
) -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    move |request: &Request| match (request.method.as_str(), request.target.as_str()) {
        ("PUT", "/latest/api/token")
            if !request.header("x-aws-ec2-metadata-token-ttl-seconds").is_empty() =>
        {
            plain(200, "T1")
        }
        _ if request.header("x-aws-ec2-metadata-token") != "T1" => plain(401, ""),
        ("GET", "/latest/meta-data/iam/security-credentials/") => plain(200, "backup role\n"),
        ("GET", "/latest/meta-data/iam/security-credentials/backup%20role") => plain(200, json(id, good_for)),
        _ => plain(404, ""),
    }
}

#[test]
fn keys_of_the_environment() {
    let store = takes_all();
    open(&store, &[("AWS_ACCESS_KEY_ID", "AKE"), ("AWS_SECRET_ACCESS_KEY", "s")]).unwrap();
    signed(&store, "AKE", "");
    let store = takes_all();
    let keys =
        [("AWS_ACCESS_KEY_ID", "AKE"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "session")];
    open(&store, &keys).unwrap();
    signed(&store, "AKE", "session");
}

#[test]
fn keys_of_an_instance() {
    let (store, metadata) = (takes_all(), instance("AKI", HOUR));
    open(&store, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.address)]).unwrap();
    signed(&store, "AKI", "AKI-token");
    assert_eq!(metadata.seen().len(), 3, "they are asked for once");
    let off = [
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.address.as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let Err(StoreError::Denied(text)) = open(&store, &off) else { panic!() };
    assert!(text.contains("no credentials") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
}

#[test]
fn keys_of_a_container() {
    let agent = Service::start(|request| match request.header("authorization") {
        "let me in" => plain(200, json("AKC", HOUR)),
        _ => plain(403, ""),
    });
    let store = takes_all();
    let uri = format!("{}/credentials", agent.address);
    let with = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "let me in"),
    ];
    open(&store, &with).unwrap();
    signed(&store, "AKC", "AKC-token");
    // The token may stand in a file, which is renewed.
    let (store, folder) = (takes_all(), tempfile::tempdir().unwrap());
    let file = folder.path().join("token");
    std::fs::write(&file, "let me in\n").unwrap();
    let with = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
    ];
    open(&store, &with).unwrap();
    signed(&store, "AKC", "AKC-token");
    let without = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri.as_str())];
    let Err(StoreError::Denied(text)) = open(&store, &without) else { panic!() };
    assert!(text.contains("container") && text.contains("403"), "{text}");
    let elsewhere = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/")];
    let Err(StoreError::Denied(text)) = open(&store, &elsewhere) else { panic!() };
    assert!(text.contains("without TLS"), "{text}");
}

/// The token service: AssumeRole for who signs with a key, AssumeRoleWithWebIdentity for who has a token.
fn tokens() -> Service {
    Service::start(tokens_as_asked())
}

fn tokens_as_asked() -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    |request| {
        let form: Vec<&str> = request.body.split('&').collect();
        let answer = |action: &str, id: &str| {
            let end = time(HOUR);
            plain(
                200,
                format!(
                    "<{action}Response><{action}Result><Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>lent</SecretAccessKey>\
                     <SessionToken>{id}-token</SessionToken><Expiration>{end}</Expiration></Credentials></{action}Result></{action}Response>"
                ),
            )
        };
        let role = form.iter().any(|pair| pair.starts_with("RoleArn=arn%3Aaws%3Aiam"));
        let by = request
            .header("authorization")
            .split('/')
            .next()
            .unwrap_or_default()
            .rsplit('=')
            .next()
            .unwrap_or_default();
        if role
            && form.contains(&"Action=AssumeRoleWithWebIdentity")
            && form.contains(&"WebIdentityToken=proof")
        {
            return answer("AssumeRoleWithWebIdentity", "AKW");
        }
        match (role && form.contains(&"Action=AssumeRole"), by) {
            (true, "AKSOURCE") => answer("AssumeRole", "AKROLE"),
            (true, "AKI") if request.header("x-amz-security-token") == "AKI-token" => {
                answer("AssumeRole", "AKROLE")
            }
            _ => error(403, "AccessDenied"),
        }
    }
}

#[test]
fn keys_of_a_web_identity() {
    let (store, tokens, folder) = (takes_all(), tokens(), tempfile::tempdir().unwrap());
    let file = folder.path().join("token");
    std::fs::write(&file, "proof\n").unwrap();
    let with = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/backup"),
        ("AWS_ENDPOINT_URL_STS", &tokens.address),
    ];
    open(&store, &with).unwrap();
    signed(&store, "AKW", "AKW-token");
    assert_eq!(tokens.seen()[0].header("authorization"), "", "the token is the proof");
    std::fs::write(&file, "forged").unwrap();
    let Err(StoreError::Denied(text)) = open(&store, &with) else { panic!() };
    assert!(
        text.contains("role/backup") && text.contains("AccessDenied") && !text.contains("forged"),
        "{text}"
    );
}

#[test]
fn keys_of_profiles() {
    let (tokens, metadata, folder) = (tokens(), instance("AKI", HOUR), tempfile::tempdir().unwrap());
    let (config, credentials) = (folder.path().join("config"), folder.path().join("credentials"));
    std::fs::write(
        &config,
        "[default]\n\
         [profile role]\nrole_arn = arn:aws:iam::1:role/backup\nsource_profile = source\n\
         [profile machine]\nrole_arn = arn:aws:iam::1:role/backup\ncredential_source = Ec2InstanceMetadata\n\
         [profile program]\ncredential_process = echo '{\"Version\":1,\"AccessKeyId\":\"AKP\",\"SecretAccessKey\":\"x\"}'\n\
         [profile fails]\ncredential_process = exit 3\n\
         [profile nobody]\nrole_arn = arn:aws:iam::1:role/backup\nsource_profile = program\n",
    )
    .unwrap();
    std::fs::write(&credentials, "[default]\naws_access_key_id = AKD\naws_secret_access_key = x\n[source]\naws_access_key_id = AKSOURCE\naws_secret_access_key = x\n").unwrap();
    let with = |profile| {
        let store = takes_all();
        let done = open(
            &store,
            &[
                ("AWS_CONFIG_FILE", config.to_str().unwrap()),
                ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
                ("AWS_ENDPOINT_URL_STS", &tokens.address),
                ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.address),
                ("AWS_PROFILE", profile),
            ],
        );
        done.map(|()| store)
    };
    signed(&with("").unwrap(), "AKD", "");
    signed(&with("role").unwrap(), "AKROLE", "AKROLE-token");
    signed(&with("machine").unwrap(), "AKROLE", "AKROLE-token");
    signed(&with("program").unwrap(), "AKP", "");
    for (profile, word) in
        [("fails", "credential_process"), ("nobody", "AccessDenied"), ("other", "no profile other")]
    {
        let Err(StoreError::Denied(text)) = with(profile).map(drop) else { panic!("{profile}") };
        assert!(text.contains(word), "{text}");
    }
}

/// Keys that end soon are asked for again before the next request; those that the store calls expired, at once.
#[test]
fn keys_are_renewed() {
    let (store, metadata) = (takes_all(), instance("AKI", Duration::from_secs(60)));
    open(&store, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.address)]).unwrap();
    signed(&store, "AKI", "AKI-token");
    assert_eq!(metadata.seen().len(), 6, "they end within five minutes: each request asks for others");
    let metadata = instance("AKI", HOUR);
    let asked = Arc::new(AtomicU64::new(0));
    let store = Service::start(move |_| match asked.fetch_add(1, SeqCst) {
        0 => error(400, "ExpiredToken"),
        _ => empty_bucket(),
    });
    open(&store, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.address)]).unwrap();
    assert_eq!((store.seen().len(), metadata.seen().len()), (3, 6));
    // Those of the environment cannot be renewed.
    let store = Service::start(|_| error(400, "ExpiredToken"));
    let Err(StoreError::Denied(text)) = open(&store, &KEYS) else { panic!() };
    assert!(text.contains("expired"), "{text}");
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKE"), ("AWS_SECRET_ACCESS_KEY", "s3cr3t")];

#[test]
fn certificates() {
    let (store, authority) = Service::start_tls(|_| empty_bucket());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &authority).unwrap();
    let bundle = ("AWS_CA_BUNDLE", file.to_str().unwrap());
    open(&store, &[KEYS[0], KEYS[1], bundle]).unwrap();
    signed(&store, "AKE", "");
    let refused = |store: &Service, variables: &[(&str, &str)], word: &str| {
        let began = std::time::Instant::now();
        let text = open(store, variables).unwrap_err().to_string();
        assert!(text.contains("certificate") && text.contains(word), "{text}");
        assert!(began.elapsed() < Duration::from_secs(1), "trying again is no help");
    };
    // The system's authorities do not know it; nor does another authority.
    refused(&store, &KEYS, "not accepted");
    let (other, _) = Service::start_tls(|_| empty_bucket());
    refused(&other, &[KEYS[0], KEYS[1], bundle], "not accepted");
    // It is that of another name.
    let named = Service { address: store.address.replace("127.0.0.1", "localhost"), ..store };
    refused(&named, &[KEYS[0], KEYS[1], bundle], "not accepted");
    std::fs::write(&file, "no certificate").unwrap();
    let text = open(&takes_all(), &[KEYS[0], KEYS[1], bundle]).unwrap_err().to_string();
    assert!(text.contains("ca.pem"), "{text}");
    // Who speaks TLS to a server that does not is told so.
    let plain = takes_all();
    let mistaken = Service { address: plain.address.replace("http:", "https:"), ..plain };
    assert!(matches!(open(&mistaken, &[KEYS[0], KEYS[1]]), Err(StoreError::Unavailable(_))));
}

/// A store in another region says which; requests are then signed for that one.
#[test]
fn another_region() {
    let elsewhere = |request: &Request| -> Answer {
        match request.header("authorization").contains("/eu-west-7/s3/") {
            true => empty_bucket(),
            false => {
                let (status, _, body) = error(400, "AuthorizationHeaderMalformed");
                (status, vec![("x-amz-bucket-region", "eu-west-7".into())], body)
            }
        }
    };
    let store = Service::start(elsewhere);
    open(&store, &KEYS).unwrap();
    assert_eq!(store.seen().len(), 3, "once in vain");
    let store = Service::start(elsewhere);
    open(&store, &[KEYS[0], KEYS[1], ("AWS_REGION", "eu-west-7")]).unwrap();
    assert_eq!(store.seen().len(), 2);
    let Err(StoreError::Denied(text)) = open(&Service::start(|_| error(301, "PermanentRedirect")), &KEYS)
    else {
        panic!()
    };
    assert!(text.contains("another region"), "{text}");
}

/// A machine whose clock is wrong dates its requests by the store's.
#[test]
fn a_wrong_clock() {
    const AHEAD: Duration = Duration::from_secs(7200);
    let now = || jiff::Timestamp::try_from(SystemTime::now() + AHEAD).unwrap();
    let store = Service::start(move |request| {
        let dated = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", request.header("x-amz-date"))
            .and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC))
            .unwrap();
        // S3 takes what is a quarter of an hour off.
        if now().duration_since(dated.timestamp()).abs() < jiff::SignedDuration::from_mins(15) {
            return empty_bucket();
        }
        let (status, _, body) = error(403, "RequestTimeTooSkewed");
        (status, vec![("date", now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())], body)
    });
    open(&store, &KEYS).unwrap();
    assert_eq!(store.seen().len(), 3, "once in vain");
    let Err(StoreError::Denied(text)) = open(&Service::start(|_| error(403, "RequestTimeTooSkewed")), &KEYS)
    else {
        panic!()
    };
    assert!(text.contains("clock"), "{text}");
}

#[test]
fn refusals_name_their_cause() {
    for (status, code, words) in [
        (403, "InvalidAccessKeyId", ["does not know the access key", "AKE"]),
        (403, "SignatureDoesNotMatch", ["secret key does not belong", "AKE"]),
        (403, "AccessDenied", ["forbids it", "AKE"]),
        (404, "NoSuchBucket", ["bucket bucket", "does not exist"]),
    ] {
        let store = Service::start(move |_| error(status, code));
        let text = open(&store, &KEYS).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert_eq!(store.seen().len(), 1, "{code} is not asked again");
        assert!(!text.contains("s3cr3t"), "{text}");
    }
    let nowhere = Service { address: "http://store.invalid".into(), ..takes_all() };
    let Err(StoreError::Unavailable(text)) = open(&nowhere, &KEYS) else { panic!() };
    assert!(text.contains("dns") || text.contains("lookup"), "{text}");
}

/// A store that is open, and a service behind it that answers as a function says.
fn opened(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static, deadline: Duration) -> (S3, Service) {
    let store = Service::start(answer);
    let environment = Environment::of(KEYS).with("HOME", "/nonexistent");
    let mut config = Config::new("s3://bucket", environment).unwrap();
    config.endpoint = Some(store.address.clone());
    config.writable = false;
    config.deadline = deadline;
    let s3 = runtime().block_on(S3::open(config)).unwrap();
    (s3, store)
}

fn is_list(request: &Request) -> bool {
    request.target.contains("list-type")
}

/// Who is on the way to the store, and says that nothing is there, has not asked it.
#[test]
fn a_page_that_is_not_found_is_no_object() {
    let shown = Arc::new(AtomicU64::new(0));
    let answer = {
        let shown = shown.clone();
        move |request: &Request| match request.method.as_str() {
            _ if is_list(request) => empty_bucket(),
            _ if shown.fetch_add(1, SeqCst) % 3 < 2 => plain(404, "<html>no such page</html>"),
            "GET" => error(404, "NoSuchKey"),
            _ => plain(204, ""),
        }
    };
    let (s3, store) = opened(answer, Duration::from_secs(20));
    runtime().block_on(async {
        assert_eq!(s3.delete("key", &Condition::Always).await, Ok(()));
        assert_eq!(store.seen().len(), 4, "it was tried until the store itself answered");
        assert_eq!(s3.get("key", 0..10, None).await.map(drop), Err(StoreError::NotFound));
        assert_eq!(store.seen().len(), 7);
        // A HEAD has no body.
        shown.store(0, SeqCst);
        assert_eq!(s3.head("key").await.map(drop), Err(StoreError::NotFound));
        assert_eq!(store.seen().len(), 8);
    });
    let (s3, _store) = opened(
        |request| if is_list(request) { empty_bucket() } else { plain(404, "<html></html>") },
        Duration::from_millis(300),
    );
    let deleted = runtime().block_on(s3.delete("key", &Condition::Always));
    assert!(matches!(deleted, Err(StoreError::Unavailable(_))), "{deleted:?}");
}

/// An answer to a HEAD has no body that says why it is refused.
#[test]
fn why_a_head_was_refused_is_found_out() {
    let object = || (200, vec![("etag", "\"e\"".to_owned())], "abc".to_owned());
    let date = |ahead: Duration| {
        let at = jiff::Timestamp::try_from(SystemTime::now() + ahead).unwrap();
        vec![("date", at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())]
    };
    // A clock that is wrong since the store was opened.
    let answer = move |request: &Request| {
        let stamp = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", request.header("x-amz-date"));
        let stamp = stamp.and_then(|date| date.to_zoned(jiff::tz::TimeZone::UTC)).unwrap().timestamp();
        let theirs = jiff::Timestamp::try_from(SystemTime::now() + HOUR).unwrap();
        match request.method.as_str() {
            _ if is_list(request) => empty_bucket(),
            "HEAD" if theirs.duration_since(stamp).abs() > jiff::SignedDuration::from_mins(15) => {
                (403, date(HOUR), String::new())
            }
            "HEAD" => object(),
            _ => error(500, "InternalError"),
        }
    };
    let (s3, store) = opened(answer, Duration::from_secs(5));
    assert_eq!(runtime().block_on(s3.head("key")).map(|object| object.size), Ok(3));
    assert_eq!(store.seen().len(), 3, "once in vain");
    // Keys that are no good any more: the store says it where it can.
    for (code, word) in [("InvalidAccessKeyId", "does not know"), ("ExpiredToken", "expired")] {
        for status in [400, 403] {
            let answer = move |request: &Request| match request.method.as_str() {
                _ if is_list(request) => empty_bucket(),
                "HEAD" => (
                    status,
                    [date(Duration::ZERO), vec![("x-amz-bucket-region", "us-east-1".into())]].concat(),
                    String::new(),
                ),
                _ => error(status, code),
            };
            let (s3, store) = opened(answer, Duration::from_secs(5));
            let Err(StoreError::Denied(text)) = runtime().block_on(s3.head("key")) else { panic!("{code}") };
            assert!(text.contains(word), "{text}");
            let asked = store.seen().pop().unwrap();
            assert_eq!((asked.method.as_str(), asked.header("range")), ("GET", "bytes=0-0"));
        }
    }
    // What passes is tried again.
    let asked = AtomicU64::new(0);
    let answer = move |request: &Request| match request.method.as_str() {
        _ if is_list(request) => empty_bucket(),
        "HEAD" if asked.fetch_add(1, SeqCst) == 0 => plain(403, ""),
        "HEAD" => object(),
        _ => error(503, "SlowDown"),
    };
    let (s3, _store) = opened(answer, Duration::from_secs(5));
    assert!(runtime().block_on(s3.head("key")).is_ok());
    // It is really forbidden.
    let answer = |request: &Request| match request.method.as_str() {
        _ if is_list(request) => empty_bucket(),
        "HEAD" => plain(403, ""),
        _ => error(403, "AccessDenied"),
    };
    let (s3, _store) = opened(answer, Duration::from_secs(5));
    let Err(StoreError::Denied(text)) = runtime().block_on(s3.head("key")) else { panic!() };
    assert!(text.contains("forbids"), "{text}");
}

/// Who lends keys fails for a moment.
#[test]
fn keys_that_cannot_be_lent_now_are_waited_for() {
    for failure in [(500, "InternalFailure"), (429, ""), (400, "Throttling")] {
        let (lender, asked) = (tokens_as_asked(), AtomicU64::new(0));
        let flaky = Service::start(move |request| match asked.fetch_add(1, SeqCst) {
            0 | 1 => error(failure.0, failure.1),
            _ => lender(request),
        });
        let (store, folder) = (takes_all(), tempfile::tempdir().unwrap());
        let file = folder.path().join("token");
        std::fs::write(&file, "proof\n").unwrap();
        let with = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/backup"),
            ("AWS_ENDPOINT_URL_STS", flaky.address.as_str()),
        ];
        open(&store, &with).unwrap_or_else(|error| panic!("{failure:?}: {error}"));
        signed(&store, "AKW", "AKW-token");
    }
    // Nobody listens: that is no refusal.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "proof\n").unwrap();
    let with = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/backup"),
        ("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1"),
    ];
    let refused = open(&takes_all(), &with);
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    // An instance that has lent keys will lend others.
    let asked = Arc::new(AtomicU64::new(0));
    let good = instance_as_asked("AKI", Duration::ZERO);
    let metadata = {
        let asked = asked.clone();
        // Three questions make keys; those of the second time are not answered at first.
        Service::start(move |request| match asked.fetch_add(1, SeqCst) {
            3..=6 => plain(503, ""),
            _ => good(request),
        })
    };
    let store = takes_all();
    open(&store, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.address)]).unwrap();
    signed(&store, "AKI", "AKI-token");
}
