//! The store of a test: a simulated one in this process, or the one that `FREEHOLD_TEST_S3=http://HOST:PORT/BUCKET` names. What is in it is looked at
//! directly, or with curl, which is a client of its own.

use super::common::{Place, eventually};
use sim::s3::{BUCKET, Faults, Features, KEY_ID, Server};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// What tests put into the environment of the simulated store's clients.
const SECRET: &str = "testersecret";

pub enum Store {
    Simulated(Server),
    Other { endpoint: String, bucket: String, prefix: String },
}

impl Store {
    /// A new one; in that of somebody else, keys below a prefix of this test.
    pub fn new(features: Features) -> Store {
        match std::env::var("FREEHOLD_TEST_S3") {
            Ok(url) => {
                let (endpoint, bucket) =
                    url.trim_end_matches('/').rsplit_once('/').expect("http://HOST:PORT/BUCKET");
                let prefix = format!("mount-{}-{}/", std::process::id(), rand());
                Store::Other { endpoint: endpoint.into(), bucket: bucket.into(), prefix }
            }
            Err(_) => Store::Simulated(Server::start(features, Faults::none()).unwrap()),
        }
    }

    pub fn simulated(&self) -> Option<&Server> {
        match self {
            Store::Simulated(server) => Some(server),
            Store::Other { .. } => None,
        }
    }

    pub fn url(&self) -> String {
        match self {
            Store::Simulated(_) => format!("s3://{BUCKET}"),
            Store::Other { bucket, prefix, .. } => format!("s3://{bucket}/{}", prefix.trim_end_matches('/')),
        }
    }

    pub fn endpoint(&self) -> String {
        match self {
            Store::Simulated(server) => server.endpoint(),
            Store::Other { endpoint, .. } => endpoint.clone(),
        }
    }

    /// The command with what leads to the store in its environment.
    pub fn command(&self, p: &Place) -> Command {
        let mut command = p.command();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("AWS_") && self.simulated().is_some() {
                command.env_remove(name);
            }
        }
        command
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_ENDPOINT_URL", self.endpoint())
            .env("HOME", p.path(""));
        if self.simulated().is_some() {
            command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
        }
        command
    }

    /// Mounts it with parts of 1 MiB, and returns the server's process.
    pub fn mount(&self, p: &Place, dir: &Path, options: &str) -> u32 {
        let mut command = self.command(p);
        command.args(["mount", &self.url(), dir.to_str().unwrap(), "--log"]).arg(p.path("log"));
        command.args(["-o", &format!("part_size=1m{options}")]);
        let said = command.output().unwrap();
        assert!(said.status.success(), "{said:?}");
        server_of(dir)
    }

    /// Waits until requests whose client was killed are through: what it had sent the store carries out, though nobody waits for it. Nobody else
    /// may have a connection.
    pub fn settle(&self) {
        match self {
            Store::Simulated(server) => eventually("connections end", || {
                // One may just have been accepted.
                let none = || server.connections() == 0;
                none() && {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                    none()
                }
            }),
            // It does not say.
            Store::Other { .. } => std::thread::sleep(std::time::Duration::from_millis(500)),
        }
    }

    /// The objects below the test's prefix that are files, and not markers of directories.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let keys: Vec<String> = match self {
            Store::Simulated(server) => {
                return server.look(|bucket| {
                    let files = bucket.objects().iter().filter(|(key, _)| !key.ends_with('/'));
                    files.map(|(key, object)| (key.clone(), object.body.to_vec())).collect()
                });
            }
            Store::Other { prefix, .. } => {
                let prefix = prefix.replace('/', "%2F");
                let listing = self.curl(&format!("?list-type=2&max-keys=1000&prefix={prefix}"));
                let listing = String::from_utf8(listing).unwrap();
                assert!(listing.contains("<IsTruncated>false"), "{listing}");
                let keys =
                    listing.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned());
                keys.filter(|key| !key.ends_with('/')).collect()
            }
        };
        let Store::Other { prefix, .. } = self else { unreachable!("it was answered") };
        keys.into_iter().map(|key| (key[prefix.len()..].to_owned(), self.curl(&format!("/{key}")))).collect()
    }

    /// What another client gets.
    fn curl(&self, path: &str) -> Vec<u8> {
        let Store::Other { endpoint, bucket, .. } = self else {
            unreachable!("the simulated store is looked at")
        };
        let keys =
            ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].map(|name| std::env::var(name).expect(name));
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--fail",
            "--aws-sigv4",
            "aws:amz:us-east-1:s3",
            "--user",
            &keys.join(":"),
            // Of no body: some servers insist on it, and curl leaves it out.
            "--header",
            "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ]);
        let said = curl.arg(format!("{endpoint}/{bucket}{path}")).output().unwrap();
        assert!(said.status.success(), "{path}: {}", String::from_utf8_lossy(&said.stderr));
        said.stdout
    }
}

/// The process that serves a mount: it has the directory among its arguments.
fn server_of(dir: &Path) -> u32 {
    let wanted = dir.to_str().unwrap().as_bytes();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if words.contains(&b"--server".as_slice()) && words.contains(&wanted) {
            return pid;
        }
    }
    panic!("nobody serves {}", dir.display());
}

fn rand() -> u32 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos()
}
