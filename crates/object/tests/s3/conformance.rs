//! What every store must do, whichever server is behind the client. What a store cannot do must be refused, not dropped in silence.

use bytes::Bytes;
use object::s3::S3;
use object::store::*;
use std::collections::BTreeMap;

fn described(pairs: &[(&str, &str)]) -> Description {
    let metadata: BTreeMap<_, _> =
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Description { content_type: Some("text/plain".into()), metadata, ..Description::default() }
}

fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at as u64 * 31 + (at as u64 >> 8) * 7 + seed as u64) as u8).collect()
}

fn fails<T: std::fmt::Debug>(result: Result<T>, expected: StoreError) {
    assert_eq!(result.expect_err("it must fail"), expected);
}

async fn all(store: &S3, prefix: &str, delimiter: bool) -> (Vec<(String, u64)>, Vec<String>) {
    let (mut objects, mut prefixes, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let page = store.list(prefix, delimiter, after.as_deref()).await.unwrap();
        for entry in page.entries {
            match entry {
                Entry::Object(key, object) => objects.push((key, object.size)),
                Entry::Prefix(prefix) => prefixes.push(prefix),
            }
        }
        after = page.next;
        if after.is_none() {
            return (objects, prefixes);
        }
    }
}

/// Removes everything behind the client's prefix.
pub async fn clear(store: &S3) {
    for upload in store.uploads("").await.unwrap() {
        store.abort(&upload.key, &upload.id).await.unwrap();
    }
    for (key, _) in all(store, "", false).await.0 {
        store.delete(&key, &Condition::Always).await.unwrap();
    }
    assert!(all(store, "", false).await.0.is_empty());
}

/// All of it. The prefix must be empty.
pub async fn everything(store: &S3) {
    clear(store).await;
    objects(store).await;
    conditions(store).await;
    copies(store).await;
    keys(store).await;
    parts(store).await;
    appends(store).await;
    renames(store).await;
    clear(store).await;
}

async fn objects(store: &S3) {
    let always = Condition::Always;
    fails(store.head("none").await, StoreError::NotFound);
    fails(store.get("none", 0..10, None).await, StoreError::NotFound);
    store.delete("none", &always).await.unwrap();
    let (body, about) = (pattern(300_000, 1), described(&[("mtime", "1700000000.5"), ("mode", "33188")]));
    let etag = store.put("a", body.clone(), &about, &always).await.unwrap();
    let object = store.head("a").await.unwrap();
    assert_eq!((object.size, &object.etag), (300_000, &etag));
    assert_eq!(object.metadata, about.metadata);
    assert_eq!(object.content_type, about.content_type);
    let age = std::time::SystemTime::now().duration_since(object.modified).unwrap_or_default();
    assert!(age.as_secs() < 600, "modified {age:?} ago");
    let (found, object) = store.get("a", 0..u64::MAX, None).await.unwrap();
    assert!(found == body && object.metadata == about.metadata);
    for range in [
        0..1,
        0..300_000,
        1..100_001,
        299_999..300_000,
        299_990..400_000,
        300_000..300_001,
        5..5,
        500_000..600_000,
    ] {
        let (found, object) = store.get("a", range.clone(), Some(&etag)).await.unwrap();
        let (start, end) = (range.start.min(300_000) as usize, range.end.min(300_000) as usize);
        assert!(found == body[start..end.max(start)], "{range:?}");
        assert_eq!((object.size, &object.etag), (300_000, &etag), "{range:?}");
    }
    let newer = store.put("a", Bytes::from_static(b"new"), &Description::default(), &always).await.unwrap();
    assert_ne!(newer, etag);
    fails(store.get("a", 0..3, Some(&etag)).await, StoreError::Precondition);
    assert!(store.head("a").await.unwrap().metadata.is_empty());
    let empty = store.put("empty", Bytes::new(), &about, &always).await.unwrap();
    let (found, object) = store.get("empty", 0..100, None).await.unwrap();
    assert!(
        found.is_empty() && object.size == 0 && object.etag == empty && object.metadata == about.metadata
    );
    assert!(store.get("empty", 0..u64::MAX, None).await.unwrap().0.is_empty());
    store.delete("a", &always).await.unwrap();
    fails(store.head("a").await, StoreError::NotFound);
}

async fn conditions(store: &S3) {
    let (nothing, body) = (Description::default(), Bytes::from_static(b"first"));
    if !store.abilities().conditional {
        let refused = store.put("c", body, &nothing, &Condition::Absent).await;
        assert!(matches!(refused, Err(StoreError::NotSupported(_))));
        return;
    }
    let first = store.put("c", body.clone(), &nothing, &Condition::Absent).await.unwrap();
    fails(
        store.put("c", Bytes::from_static(b"x"), &nothing, &Condition::Absent).await,
        StoreError::Precondition,
    );
    let second = Bytes::from_static(b"second");
    let etag = store.put("c", second.clone(), &nothing, &Condition::Is(first.clone())).await.unwrap();
    fails(
        store.put("c", body.clone(), &nothing, &Condition::Is(first.clone())).await,
        StoreError::Precondition,
    );
    assert_eq!(store.get("c", 0..100, Some(&etag)).await.unwrap().0, second);
    // An object that is not there is in no state.
    let missing = store.put("c-none", body, &nothing, &Condition::Is(first.clone())).await;
    assert!(matches!(missing, Err(StoreError::Precondition | StoreError::NotFound)), "{missing:?}");
    fails(store.head("c-none").await, StoreError::NotFound);
    if store.abilities().conditional_delete {
        fails(store.delete("c", &Condition::Is(first.clone())).await, StoreError::Precondition);
        store.delete("c", &Condition::Is(etag)).await.unwrap();
        store.delete("c", &Condition::Is(first)).await.unwrap();
        fails(store.head("c").await, StoreError::NotFound);
    } else {
        let refused = store.delete("c", &Condition::Is(etag)).await;
        assert!(matches!(refused, Err(StoreError::NotSupported(_))));
    }
}

async fn copies(store: &S3) {
    let (one, two) = (described(&[("mode", "1")]), described(&[("mode", "2")]));
    let body = pattern(70_000, 3);
    let etag = store.put("from", body.clone(), &one, &Condition::Always).await.unwrap();
    store.copy("from", "dir/to", None, Some(&etag)).await.unwrap();
    let (found, object) = store.get("dir/to", 0..u64::MAX, None).await.unwrap();
    assert!(found == body && object.metadata == one.metadata);
    store.copy("from", "from", Some(&two), None).await.unwrap();
    assert_eq!(store.head("from").await.unwrap().metadata, two.metadata);
    assert_eq!(store.get("from", 0..u64::MAX, None).await.unwrap().0, body);
    fails(store.copy("nothing", "to", None, None).await, StoreError::NotFound);
    let other = ETag("\"00000000000000000000000000000000\"".into());
    fails(store.copy("from", "to", None, Some(&other)).await, StoreError::Precondition);
    fails(store.head("to").await, StoreError::NotFound);
}

/// Keys with all that XML, URLs and signatures have their own ideas of.
async fn keys(store: &S3) {
    let odd = [
        "k/a b",
        "k/a+b",
        "k/a%20b",
        "k/ü€😀",
        "k/&<>\"'",
        "k/q?x=1#f",
        "k/a=b;c,d@e:f!g$h(i)j*k",
        "k/~t[u]{v}|w^x`y",
        "k/tab\tq",
    ];
    let odd: Vec<&str> = odd.to_vec();
    for (at, key) in odd.iter().enumerate() {
        store
            .put(key, pattern(at, 0), &described(&[("n", &at.to_string())]), &Condition::Always)
            .await
            .unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for (at, key) in odd.iter().enumerate() {
        let (body, object) =
            store.get(key, 0..100, None).await.unwrap_or_else(|error| panic!("{key}: {error}"));
        assert!(body.len() == at && object.metadata["n"] == at.to_string(), "{key}");
    }
    let mut sorted: Vec<String> = odd.iter().map(|key| key.to_string()).collect();
    sorted.sort();
    let listed: Vec<String> = all(store, "k/", true).await.0.into_iter().map(|(key, _)| key).collect();
    assert_eq!(listed, sorted);
    let copied = format!("{}-copied", odd[3]);
    store.copy(odd[4], &copied, None, None).await.unwrap();
    assert_eq!(store.head(&copied).await.unwrap().size, 4);
    store.put("k/deep/er/x", Bytes::new(), &Description::default(), &Condition::Always).await.unwrap();
    store.put("k/deep+/y", Bytes::new(), &Description::default(), &Condition::Always).await.unwrap();
    assert_eq!(all(store, "k/", true).await.1, ["k/deep+/", "k/deep/"]);
    assert_eq!(all(store, "k/deep", false).await.0.len(), 2);
    let long = "l".repeat(200);
    store.put(&long, Bytes::new(), &Description::default(), &Condition::Always).await.unwrap();
    assert!(matches!(store.head(&"l".repeat(1025)).await, Err(StoreError::Refused(_))));
    assert!(matches!(store.head("").await, Err(StoreError::Refused(_))));
    // More than one page.
    for group in 0..26 {
        let puts = (0..40).map(|at| (format!("many/{:04}", group * 40 + at), Bytes::new()));
        let nothing = Description::default();
        for (key, body) in puts {
            store.put(&key, body, &nothing, &Condition::Always).await.unwrap();
        }
    }
    let listed = all(store, "many/", true).await.0;
    assert_eq!(listed.len(), 1040);
    assert!(listed.is_sorted());
}

async fn parts(store: &S3) {
    let size = store.abilities().part_min.max(1 << 20) as usize;
    let about = described(&[("mode", "7")]);
    let upload = store.begin("big one", &about).await.unwrap();
    let bodies = [pattern(size, 1), pattern(size, 2), pattern(1000, 3)];
    let mut parts = Vec::new();
    for number in [2, 1, 3] {
        let body = bodies[number - 1].clone();
        parts.push(store.part("big one", &upload, number as u16, body).await.unwrap());
    }
    // A part may be replaced.
    parts[2] = store.part("big one", &upload, 3, bodies[2].clone()).await.unwrap();
    parts.sort_by_key(|part| part.number);
    fails(store.head("big one").await, StoreError::NotFound);
    let uploads = store.uploads("big").await.unwrap();
    assert_eq!(
        uploads.iter().map(|upload| (upload.key.as_str(), &upload.id)).collect::<Vec<_>>(),
        [("big one", &upload)]
    );
    assert!(store.uploads("other").await.unwrap().is_empty());
    let known = store.parts("big one", &upload).await.unwrap();
    assert_eq!(
        known.iter().map(|part| (part.number, part.size, &part.etag)).collect::<Vec<_>>(),
        parts.iter().map(|part| (part.number, part.size, &part.etag)).collect::<Vec<_>>()
    );
    if store.abilities().conditional {
        store.put("big one", Bytes::from_static(b"stands"), &about, &Condition::Always).await.unwrap();
        fails(store.complete("big one", &upload, &parts, &Condition::Absent).await, StoreError::Precondition);
        assert_eq!(store.head("big one").await.unwrap().size, 6);
        store.delete("big one", &Condition::Always).await.unwrap();
        store.complete("big one", &upload, &parts, &Condition::Absent).await.unwrap();
    } else {
        store.complete("big one", &upload, &parts, &Condition::Always).await.unwrap();
    }
    let (found, object) = store.get("big one", 0..u64::MAX, None).await.unwrap();
    assert!(found == bodies.concat() && object.metadata == about.metadata);
    assert!(store.uploads("").await.unwrap().is_empty());
    // Given up.
    let upload = store.begin("gone", &about).await.unwrap();
    store.part("gone", &upload, 1, bodies[2].clone()).await.unwrap();
    store.abort("gone", &upload).await.unwrap();
    store.abort("gone", &upload).await.unwrap();
    fails(store.part("gone", &upload, 1, bodies[2].clone()).await, StoreError::NotFound);
    fails(store.parts("gone", &upload).await, StoreError::NotFound);
    fails(store.head("gone").await, StoreError::NotFound);
    assert!(store.uploads("").await.unwrap().is_empty());
}

/// An append: what is there stays in the store, and more is uploaded behind it.
async fn appends(store: &S3) {
    let size = store.abilities().part_min.max(1 << 20);
    let (old, more) = (pattern(size as usize + 10, 5), pattern(500, 6));
    let state = store.put("log", old.clone(), &Description::default(), &Condition::Always).await.unwrap();
    let upload = store.begin_with_copies("log", &Description::default()).await.unwrap();
    let other = ETag("\"00000000000000000000000000000000\"".into());
    if !store.abilities().part_copy {
        let refused = store.part_copy("log", &upload, 1, "log", 0..size, &state).await;
        assert!(matches!(refused, Err(StoreError::NotSupported(_))));
        return store.abort("log", &upload).await.unwrap();
    }
    fails(store.part_copy("log", &upload, 1, "log", 0..size, &other).await, StoreError::Precondition);
    fails(store.part_copy("log", &upload, 1, "no log", 0..size, &state).await, StoreError::NotFound);
    let first = store.part_copy("log", &upload, 1, "log", 0..size, &state).await.unwrap();
    let tail = [&old[size as usize..], &more].concat();
    let second = store.part("log", &upload, 2, Bytes::from(tail)).await.unwrap();
    let on = if store.abilities().conditional { Condition::Is(state) } else { Condition::Always };
    store.complete("log", &upload, &[first, second], &on).await.unwrap();
    assert!(store.get("log", 0..u64::MAX, None).await.unwrap().0 == [old, more].concat());
}

async fn renames(store: &S3) {
    let about = described(&[("mode", "9")]);
    let state = store.put("was", pattern(1000, 8), &about, &Condition::Always).await.unwrap();
    if !store.abilities().rename {
        let refused = store.rename("was", "is", &state, &Condition::Absent).await;
        return assert!(matches!(refused, Err(StoreError::NotSupported(_))));
    }
    store.put("stands", Bytes::new(), &about, &Condition::Always).await.unwrap();
    fails(store.rename("was", "stands", &state, &Condition::Absent).await, StoreError::Precondition);
    store.rename("was", "dir/is", &state, &Condition::Absent).await.unwrap();
    fails(store.head("was").await, StoreError::NotFound);
    let (found, object) = store.get("dir/is", 0..u64::MAX, None).await.unwrap();
    assert!(found == pattern(1000, 8) && object.metadata == about.metadata);
    store.rename("dir/is", "stands", &state, &Condition::Always).await.unwrap();
    assert_eq!(store.head("stands").await.unwrap().size, 1000);
    fails(store.rename("was", "x", &state, &Condition::Always).await, StoreError::NotFound);
}
