//! The client against a simulated store and network that fail: whatever happens on the way, each call ends as it would have without it.
//!
//! `FREEHOLD_SEEDS` says how many seeds are run (default 30); a failure names its seed, which `FREEHOLD_SEED` runs alone.

#[path = "s3/conformance.rs"]
mod conformance;

use bytes::Bytes;
use object::s3::{Config, Environment, Keys, Kind, PROBE, Patience, S3, Secret, Source};
use object::store::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sim::s3::{BUCKET, Crc, Faults, Features, KEY_ID, Rates, Server};
use std::collections::BTreeMap;
use std::time::Duration;

fn config(server: &Server) -> Config {
    let mut config = Config::new(&format!("s3://{BUCKET}/p"), Environment::default()).unwrap();
    config.endpoint = Some(server.endpoint());
    config.credentials = Source::Fixed(Keys { id: KEY_ID.into(), secret: Secret::new("s"), token: None });
    config.patience = Patience { connect: Duration::from_secs(5), silence: Duration::from_millis(1500) };
    config.deadline = Duration::from_secs(100);
    config
}

async fn open(server: &Server) -> S3 {
    S3::open(config(server)).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_store_with_everything() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    runtime().block_on(async {
        let store = open(&server).await;
        let found = store.abilities();
        assert!(found.conditional && found.conditional_delete && found.part_copy && found.rename);
        assert_eq!(found.part_min, 5 << 20, "parts of a byte are refused");
        assert!(
            server.look(|bucket| bucket.objects().is_empty() && bucket.uploads() == 0),
            "{PROBE} keys are gone"
        );
        conformance::everything(&store).await;
    });
}

/// As of SeaweedFS. Keys have to say by themselves what a plus is in a listing.
#[test]
fn stores_that_do_not_encode_prefixes() {
    for features in [Features::ALL, Features::FEW] {
        let server = Server::start(Features { echo: false, ..features }, Faults::none()).unwrap();
        runtime().block_on(async { conformance::everything(&open(&server).await).await });
    }
}

#[test]
fn a_store_that_drops_what_it_does_not_know() {
    let server = Server::start(Features { part_min: 1, ..Features::FEW }, Faults::none()).unwrap();
    runtime().block_on(async {
        let store = open(&server).await;
        let found = store.abilities();
        assert!(!found.conditional && !found.conditional_delete && !found.part_copy && !found.rename);
        assert_eq!(found.part_min, 1);
        conformance::everything(&store).await;
    });
}

/// CRC32C where the store computes it of whole objects, else CRC64NVME, else what is verified and not kept.
#[test]
fn checksums_are_those_that_the_store_has_of_wholes() {
    let all = Features { part_min: 1, ..Features::ALL };
    for (features, expected) in [
        (all, Some("CRC32C")),
        (Features { composite: true, ..all }, Some("CRC64NVME")),
        (Features { checksums: &[Crc::CRC64NVME], ..all }, Some("CRC64NVME")),
        (Features { checksums: &[Crc::CRC32C], composite: true, ..all }, None),
        (Features { checksums: &[], ..all }, None),
    ] {
        let named = features.checksums;
        let server = Server::start(features, Faults::none()).unwrap();
        runtime().block_on(async {
            let store = open(&server).await;
            let upload = store.begin("parts", &Description::default()).await.unwrap();
            let mut parts = Vec::new();
            for number in [1, 2] {
                parts.push(store.part("parts", &upload, number, Bytes::from_static(b"body")).await.unwrap());
            }
            let made = store.complete("parts", &upload, &parts, &Condition::Always).await.unwrap();
            store.head("parts").await.unwrap();
            let sum = store.checksum("parts", &made);
            assert_eq!(sum.map(|sum| sum.crc.name()), expected, "{named:?}");
            assert!(sum.is_none_or(|sum| sum == sum.crc.of(b"bodybody")));
        });
    }
}

#[test]
fn a_client_that_may_not_write_writes_nothing() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    runtime().block_on(async {
        let mut config = config(&server);
        config.writable = false;
        let store = S3::open(config).await.unwrap();
        assert!(!store.abilities().conditional);
        let counters = store.counters();
        assert_eq!((counters.total(), counters.requests(Kind::List)), (1, 1));
    });
}

#[test]
fn what_cannot_be_put_right_ends_with_the_deadline() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    runtime().block_on(async {
        let mut config = config(&server);
        config.deadline = Duration::from_millis(300);
        config.patience.silence = Duration::from_millis(200);
        let store = S3::open(config).await.unwrap();
        store
            .put("a", Bytes::from_static(b"body"), &Description::default(), &Condition::Always)
            .await
            .unwrap();
        for rates in [
            Rates { slow_down: 1000, ..Rates::default() },
            Rates { reset_before: 1000, ..Rates::default() },
            Rates { cut: 1000, ..Rates::default() },
            Rates { silence: 1000, ..Rates::default() },
        ] {
            server.set_faults(Faults::new(rates, 1));
            let began = std::time::Instant::now();
            let error = store.get("a", 0..u64::MAX, None).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            assert!(began.elapsed() < Duration::from_secs(5), "{rates:?}");
        }
        server.set_faults(Faults::new(Rates { flip_answer: 1000, ..Rates::default() }, 1));
        let error = store.get("a", 0..u64::MAX, None).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged(_)), "{error}");
        server.set_faults(Faults::new(Rates { flip_request: 1000, ..Rates::default() }, 1));
        let put =
            store.put("a", Bytes::from_static(b"other"), &Description::default(), &Condition::Always).await;
        assert!(matches!(put, Err(StoreError::Damaged(_))), "{put:?}");
        server.set_faults(Faults::none());
        assert_eq!(store.get("a", 0..u64::MAX, None).await.unwrap().0, "body");
    });
}

/// Opening finds out what a store can do, whichever answers are lost meanwhile.
#[test]
fn a_client_opens_whatever_is_lost() {
    for seed in seeds() {
        println!("seed {seed}");
        let features = if seed % 2 == 0 { Features::ALL } else { Features::FEW };
        let server = Server::start(features, Faults::new(Rates::all(40), seed)).unwrap();
        runtime().block_on(async {
            let mut config = config(&server);
            config.patience.silence = Duration::from_millis(400);
            let store = S3::open(config).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let able = store.abilities();
            assert_eq!(
                (able.conditional, able.conditional_delete, able.part_copy, able.rename),
                (features.conditional, features.conditional_delete, features.part_copy, features.rename),
                "seed {seed}"
            );
        });
    }
}

#[test]
fn nobody_listens() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    let mut config = config(&server);
    drop(server);
    config.first = Duration::from_millis(300);
    let begun = std::time::Instant::now();
    let Err(StoreError::Unavailable(text)) = runtime().block_on(S3::open(config)).map(drop) else { panic!() };
    assert!(text.contains("refused"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(5), "a store that never answered is not waited for");
}

/// The store goes away for a moment once it is known: it is waited for as before.
#[test]
fn a_store_that_answered_once_is_waited_for() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    runtime().block_on(async {
        let mut config = config(&server);
        config.first = Duration::from_millis(1);
        let store = S3::open(config).await.unwrap();
        server.set_faults(Faults::new(Rates { reset_before: 1000, ..Default::default() }, 1));
        let (head, ()) = tokio::join!(store.head("nothing"), async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            server.set_faults(Faults::none());
        });
        assert_eq!(head.unwrap_err(), StoreError::NotFound);
    });
}

/// Whoever calls goes: what fails is tried again for a moment, and then no longer.
#[test]
fn a_client_in_a_hurry_gives_up() {
    let server = Server::start(Features::ALL, Faults::none()).unwrap();
    runtime().block_on(async {
        let mut config = config(&server);
        config.deadline = Duration::from_secs(100);
        let store = S3::open(config).await.unwrap();
        server.set_faults(Faults::new(Rates { reset_before: 1000, ..Default::default() }, 1));
        let begun = std::time::Instant::now();
        let (head, ()) = tokio::join!(store.head("nothing"), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.hurry(begun + Duration::from_millis(500));
        });
        assert!(matches!(head, Err(StoreError::Unavailable(_))), "{head:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
}

/// Content and metadata of all keys.
type Model = BTreeMap<String, (Vec<u8>, Metadata)>;

/// A call that cannot be done fails, and says why; where an answer was lost, it may say that it does not know.
fn fails<T: std::fmt::Debug>(result: Result<T>, why: StoreError, what: &str) {
    match result {
        Err(error) if error == why => {}
        Err(StoreError::Unavailable(text)) if text.contains("answer was lost") => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// As [`fails`], of a call whose condition does not hold.
fn refused<T: std::fmt::Debug>(result: Result<T>, what: &str, key: &str, on: &Condition) {
    fails(result, StoreError::Precondition, &format!("{what} {key} {on:?}"));
}

struct Run {
    store: S3,
    model: Model,
    /// The state of each key of the model, and one that has passed.
    states: BTreeMap<String, ETag>,
    passed: ETag,
    random: SmallRng,
    made: u64,
}

impl Run {
    fn key(&mut self) -> String {
        ["a", "b", "d/c +%", "d/e"][self.random.random_range(0..4)].to_owned()
    }

    /// Content that was never there before.
    fn body(&mut self, most: usize) -> Bytes {
        self.made += 1;
        let mut body = vec![0; self.random.random_range(8..most)];
        self.random.fill(&mut body[..]);
        body[..8].copy_from_slice(&self.made.to_le_bytes());
        Bytes::from(body)
    }

    fn about(&mut self) -> Description {
        let metadata = Metadata::from([("mtime".to_owned(), self.random.random::<u32>().to_string())]);
        Description { metadata, ..Description::default() }
    }

    /// A condition, and whether the key obeys it.
    fn condition(&mut self, key: &str, able: bool) -> (Condition, bool) {
        match self.random.random_range(0..4) {
            1 if able => (Condition::Absent, !self.model.contains_key(key)),
            2 if able => match self.states.get(key) {
                Some(state) => (Condition::Is(state.clone()), true),
                None => (Condition::Is(self.passed.clone()), false),
            },
            // A copy may have brought the passed state of another key.
            3 if able => (Condition::Is(self.passed.clone()), self.states.get(key) == Some(&self.passed)),
            _ => (Condition::Always, true),
        }
    }

    fn is(&mut self, key: &str, content: Option<(Vec<u8>, Metadata)>, state: Option<ETag>) {
        match content {
            Some(content) => self.model.insert(key.to_owned(), content),
            None => self.model.remove(key),
        };
        let before = match state {
            Some(state) => self.states.insert(key.to_owned(), state),
            None => self.states.remove(key),
        };
        self.passed = before.unwrap_or_else(|| self.passed.clone());
    }

    async fn step(&mut self) {
        let able = self.store.abilities().clone();
        let key = self.key();
        match self.random.random_range(0..10) {
            0..=2 => {
                let (body, about) = (self.body(3000), self.about());
                let (on, obeyed) = self.condition(&key, able.conditional);
                let result = self.store.put(&key, body.clone(), &about, &on).await;
                if obeyed {
                    self.is(&key, Some((body.to_vec(), about.metadata)), Some(result.unwrap()));
                } else {
                    refused(result, "put", &key, &on);
                }
            }
            3 | 4 => self.read(&key).await,
            5 => {
                let (mut on, mut obeyed) = self.condition(&key, able.conditional_delete);
                if on == Condition::Absent || !self.model.contains_key(&key) {
                    (on, obeyed) = (Condition::Always, true);
                }
                let result = self.store.delete(&key, &on).await;
                if obeyed {
                    result.unwrap();
                    self.is(&key, None, None);
                } else {
                    refused(result, "delete", &key, &on);
                }
            }
            6 => {
                let to = self.key();
                let about = self.random.random_bool(0.5).then(|| self.about());
                let result = self.store.copy(&key, &to, about.as_ref(), self.states.get(&key)).await;
                match self.model.get(&key).cloned() {
                    Some((body, metadata)) => {
                        let metadata = about.map_or(metadata, |about| about.metadata);
                        self.is(&to, Some((body, metadata)), Some(result.unwrap()));
                    }
                    None => assert_eq!(result, Err(StoreError::NotFound)),
                }
            }
            7 if able.rename => {
                let to = self.key();
                let state = self.states.get(&key).unwrap_or(&self.passed).clone();
                let on = Condition::Absent;
                let result = self.store.rename(&key, &to, &state, &on).await;
                match self.model.get(&key).cloned() {
                    // What is asked for may be so already, without any rename: a copy shares its source's state.
                    None if result.is_ok() => assert_eq!(self.states.get(&to), Some(&state)),
                    None => fails(result, StoreError::NotFound, "rename of what is not there"),
                    Some(_) if self.model.contains_key(&to) => refused(result, "rename", &to, &on),
                    Some(content) => {
                        result.unwrap();
                        self.is(&to, Some(content), Some(state));
                        self.model.remove(&key);
                        self.states.remove(&key);
                    }
                }
            }
            8 => self.upload(&key, &able).await,
            _ => self.list().await,
        }
    }

    async fn read(&mut self, key: &str) {
        let range = match self.random.random_range(0..2) {
            0 => 0..u64::MAX,
            _ => self.random.random_range(0..2000)..self.random.random_range(2000..4000),
        };
        let result = self.store.get(key, range.clone(), self.states.get(key)).await;
        let Some((body, metadata)) = self.model.get(key) else {
            return assert_eq!(result.err(), Some(StoreError::NotFound));
        };
        let (found, object) = result.unwrap();
        let (start, end) =
            ((range.start as usize).min(body.len()), (range.end.min(body.len() as u64)) as usize);
        assert!(found == body[start..end.max(start)], "{key} {range:?}");
        assert_eq!(
            (&object.metadata, object.size, &object.etag),
            (metadata, body.len() as u64, &self.states[key])
        );
    }

    async fn upload(&mut self, key: &str, able: &Abilities) {
        let (first, last, about) = (self.body(20 << 10), self.body(3000), self.about());
        let first = Bytes::from([first.as_ref(), &[7; 16 << 10]].concat());
        let upload = self.store.begin_with_copies(key, &about).await.unwrap();
        let mut parts = vec![self.store.part(key, &upload, 1, first.clone()).await.unwrap()];
        let mut whole = first.to_vec();
        let source =
            self.model.get(key).filter(|(body, _)| body.len() > 100).map(|(body, _)| body[10..90].to_vec());
        match source {
            Some(middle) if able.part_copy => {
                let state = self.states[key].clone();
                parts.push(self.store.part_copy(key, &upload, 2, key, 10..90, &state).await.unwrap());
                whole.extend(middle);
            }
            _ => {
                parts.push(self.store.part(key, &upload, 2, last.clone()).await.unwrap());
                whole.extend(&last);
            }
        }
        let known = self.store.parts(key, &upload).await.unwrap();
        assert_eq!(
            known.iter().map(|part| &part.etag).collect::<Vec<_>>(),
            parts.iter().map(|part| &part.etag).collect::<Vec<_>>()
        );
        let (on, obeyed) = self.condition(key, able.conditional);
        let result = self.store.complete(key, &upload, &parts, &on).await;
        if obeyed {
            self.is(key, Some((whole, about.metadata)), Some(result.unwrap()));
        } else {
            refused(result, "complete", key, &on);
            self.store.abort(key, &upload).await.unwrap();
        }
    }

    async fn list(&mut self) {
        let page = self.store.list("", false, None).await.unwrap();
        let found: Vec<_> = page
            .entries
            .iter()
            .map(|entry| match entry {
                Entry::Object(key, object) => (key.as_str(), object.size, &object.etag),
                Entry::Prefix(prefix) => panic!("{prefix}"),
            })
            .collect();
        let expected: Vec<_> = self
            .model
            .iter()
            .map(|(key, (body, _))| (key.as_str(), body.len() as u64, &self.states[key]))
            .collect();
        assert_eq!(found, expected);
    }
}

fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("FREEHOLD_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("FREEHOLD_SEEDS").unwrap_or(30)).collect(),
    }
}

/// One client, any calls in any order: each ends as if nothing had gone wrong, and what is in the bucket then is what was acknowledged.
#[test]
fn calls_end_as_if_nothing_had_gone_wrong() {
    let mut struck = 0;
    for seed in seeds() {
        println!("seed {seed}");
        let features = match seed % 3 {
            0 => Features::ALL,
            1 => Features { md5_etags: false, checksums: &[Crc::CRC64NVME], ..Features::ALL },
            _ => Features::FEW,
        };
        let server = Server::start(features, Faults::none()).unwrap();
        runtime().block_on(async {
            let mut config = config(&server);
            config.patience.silence = Duration::from_millis(400);
            let store = S3::open(config).await.unwrap();
            let able = store.abilities();
            assert_eq!(
                (able.conditional, able.part_copy, able.rename),
                (features.conditional, features.part_copy, features.rename)
            );
            let passed = store
                .put("first", Bytes::from_static(b"first"), &Description::default(), &Condition::Always)
                .await
                .unwrap();
            store.delete("first", &Condition::Always).await.unwrap();
            let random = SmallRng::seed_from_u64(seed);
            let mut run =
                Run { store, model: Model::new(), states: BTreeMap::new(), passed, random, made: 0 };
            server.set_faults(Faults::new(Rates::all(20), seed));
            for _ in 0..60 {
                run.step().await;
            }
            struck += server.struck();
            server.set_faults(Faults::none());
            // A client that met none of it sees the same, and so does who looks into the store.
            let other = open(&server).await;
            for (key, (body, metadata)) in &run.model {
                let (found, object) = other.get(key, 0..u64::MAX, None).await.unwrap();
                assert!(found == *body && object.metadata == *metadata, "{key}");
            }
            let there = server.look(|bucket| {
                bucket
                    .objects()
                    .iter()
                    .map(|(key, object)| (key.clone(), object.body.to_vec()))
                    .collect::<Vec<_>>()
            });
            let expected: Vec<_> =
                run.model.into_iter().map(|(key, (body, _))| (format!("p/{key}"), body)).collect();
            assert!(
                there == expected,
                "{:?}",
                there.iter().map(|(key, body)| (key, body.len())).collect::<Vec<_>>()
            );
        });
    }
    assert!(struck > 0, "no fault struck: nothing was tested");
}

/// Several clients change one object on condition of its state: no change is lost, and none is made twice.
#[test]
fn no_update_is_lost_or_made_twice() {
    const WRITERS: u64 = 4;
    const CHANGES: u64 = 6;
    for seed in seeds().into_iter().take(100) {
        println!("seed {seed}");
        let server = Server::start(Features::ALL, Faults::none()).unwrap();
        runtime().block_on(async {
            let first = open(&server).await;
            let created = first.put("log", Bytes::new(), &Description::default(), &Condition::Absent).await;
            created.unwrap();
            server.set_faults(Faults::new(Rates::all(15), seed));
            let mut writers = Vec::new();
            for writer in 0..WRITERS {
                let mut config = config(&server);
                config.abilities = Some(first.abilities().clone());
                writers.push(tokio::spawn(async move {
                    let store = S3::open(config).await.unwrap();
                    for change in 0..CHANGES {
                        loop {
                            let (log, object) = store.get("log", 0..u64::MAX, None).await.unwrap();
                            let longer = Bytes::from([&log[..], &[writer as u8, change as u8]].concat());
                            match store
                                .put("log", longer, &Description::default(), &Condition::Is(object.etag))
                                .await
                            {
                                Ok(_) => break,
                                Err(StoreError::Precondition) => continue,
                                // Perhaps it was made, and others have gone on from there.
                                Err(StoreError::Unavailable(text)) if text.contains("answer was lost") => {
                                    let log = store.get("log", 0..u64::MAX, None).await.unwrap().0;
                                    if log.chunks(2).any(|made| made == [writer as u8, change as u8]) {
                                        break;
                                    }
                                }
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                }));
            }
            for writer in writers {
                writer.await.unwrap();
            }
            let log = server.look(|bucket| bucket.objects()["p/log"].body.to_vec());
            let mut changes: Vec<(u8, u8)> = log.chunks(2).map(|pair| (pair[0], pair[1])).collect();
            changes.sort();
            let all =
                (0..WRITERS as u8).flat_map(|writer| (0..CHANGES as u8).map(move |change| (writer, change)));
            assert_eq!(changes, all.collect::<Vec<_>>());
        });
    }
}

/// Of many clients that create one object, one does.
#[test]
fn an_object_is_created_once() {
    for seed in seeds().into_iter().take(100) {
        println!("seed {seed}");
        let server = Server::start(Features::ALL, Faults::none()).unwrap();
        runtime().block_on(async {
            let first = open(&server).await;
            server.set_faults(Faults::new(Rates::all(25), seed));
            let mut creators = Vec::new();
            for creator in 0..4_u8 {
                let mut config = config(&server);
                config.abilities = Some(first.abilities().clone());
                creators.push(tokio::spawn(async move {
                    let store = S3::open(config).await.unwrap();
                    let body = Bytes::from(vec![creator; 10]);
                    match store.put("once", body, &Description::default(), &Condition::Absent).await {
                        Ok(_) => true,
                        Err(StoreError::Precondition) => false,
                        Err(StoreError::Unavailable(text)) if text.contains("answer was lost") => false,
                        Err(error) => panic!("{error}"),
                    }
                }));
            }
            let mut won = Vec::new();
            for creator in creators {
                won.push(creator.await.unwrap());
            }
            let body = server.look(|bucket| bucket.objects()["p/once"].body.to_vec());
            assert_eq!(won.iter().filter(|won| **won).count(), 1);
            assert!(won[body[0] as usize]);
        });
    }
}
