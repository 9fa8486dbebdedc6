//! The client against servers that others wrote. `FREEHOLD_TEST_S3` names them, separated by spaces: `http://HOST:PORT/BUCKET`, keys by the
//! usual chain. `scripts/object-servers.sh test` installs, starts and names some. Without it there is nothing to test here, and the test says so.

#[path = "s3/conformance.rs"]
mod conformance;

use object::s3::{Config, Environment, Keys, S3, Secret, Source};
use object::store::{Store, StoreError};
use std::time::Duration;

fn config(server: &str) -> Config {
    let (endpoint, bucket) = server.rsplit_once('/').expect("http://HOST:PORT/BUCKET");
    let mut config = Config::new(&format!("s3://{bucket}/conformance"), Environment::of_process()).unwrap();
    config.endpoint = Some(endpoint.into());
    config.deadline = Duration::from_secs(20);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_others_wrote() {
    let Ok(servers) = std::env::var("FREEHOLD_TEST_S3") else {
        return eprintln!("skipped: FREEHOLD_TEST_S3 names no server (scripts/object-servers.sh test)");
    };
    for server in servers.split_whitespace() {
        let store = S3::open(config(server)).await.unwrap_or_else(|error| panic!("{server}: {error}"));
        eprintln!(
            "{server}: {:?}; {} requests to find that out",
            store.abilities(),
            store.counters().total()
        );
        conformance::everything(&store).await;
        mistakes(server).await;
        eprintln!(
            "{server}: passed with {} requests, {} of them again",
            store.counters().total(),
            store.counters().retries()
        );
    }
}

/// Mistakes of the user are told from each other.
async fn mistakes(server: &str) {
    let denied = |result: Result<S3, StoreError>, word: &str| match result {
        Err(StoreError::Denied(text)) if text.contains(word) => {}
        other => panic!("{server}: {:?} instead of {word}", other.err()),
    };
    let mut wrong = config(server);
    wrong.bucket = "no-such-bucket-here".into();
    match S3::open(wrong).await {
        Err(StoreError::NoSuchBucket(name)) => assert_eq!(name, "no-such-bucket-here"),
        other => panic!("{server}: {:?}", other.err()),
    }
    let keys = |id: &str| Source::Fixed(Keys { id: id.into(), secret: Secret::new("wrong"), token: None });
    let mut wrong = config(server);
    wrong.credentials = keys("nobody");
    denied(S3::open(wrong).await, "nobody");
    let mut wrong = config(server);
    wrong.credentials = keys(&std::env::var("AWS_ACCESS_KEY_ID").expect("keys of the servers"));
    denied(S3::open(wrong).await, "secret key");
    let mut wrong = config(server);
    wrong.credentials = Source::Anonymous;
    denied(S3::open(wrong).await, "anonymous");
}
