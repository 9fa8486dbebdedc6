//! `mountpoint-peer BUCKET DIR --endpoint URL --region R [--allow-overwrite] [--allow-delete]`
//!
//! Mounts a bucket with the libraries of which AWS makes Mountpoint for Amazon S3 (`mount-s3`), so that
//! scripts/object-bench.sh can measure it beside Freehold: the registry of crates has them, and of the program only
//! a placeholder. Everything between the kernel and the server is theirs (FUSE session, inodes, prefetcher, uploader,
//! client, pool of memory), with the defaults of that program: those that the libraries do not set by themselves are the
//! constants below. What it lacks against it are options: no cache on a disk, no incremental uploads, no prefix.
//!
//! Buckets are addressed by path. Credentials are found as everywhere (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...).
//! It stays in the foreground until DIR is unmounted, or SIGINT or SIGTERM comes, and then unmounts DIR.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use mountpoint_s3_client::config::{AWSCRT_LOG_TARGET, AddressingStyle, S3ClientAuthConfig};
use mountpoint_s3_client::user_agent::UserAgent;
use mountpoint_s3_fs::data_cache::DataCacheConfig;
use mountpoint_s3_fs::fuse::config::{FuseOptions, FuseSessionConfig, MountPoint};
use mountpoint_s3_fs::fuse::session::FuseSession;
use mountpoint_s3_fs::logging::{LoggingConfig, init_logging};
use mountpoint_s3_fs::memory::{CandidateSize, MINIMUM_MEM_LIMIT, PagedPool, effective_total_memory};
use mountpoint_s3_fs::s3::config::{
    ClientConfig, MemoryLimitSetting, PartConfig, Region, TargetThroughputSetting,
};
use mountpoint_s3_fs::s3::{Bucket, Prefix, S3Path, S3Personality};
use mountpoint_s3_fs::{
    MountpointConfig, Runtime, S3FilesystemConfig, Superblock, SuperblockConfig, metrics,
};

/// Size of the parts of GET and of multipart PUT (`--part-size`).
const PART: usize = 8 << 20;
/// Threads that answer the kernel, at most (`--max-threads`).
const THREADS: usize = 16;
/// Memory that it may use, of all there is, in percent (`--memory-target`).
const MEMORY_PERCENT: u64 = 95;
/// What is logged; SIGUSR2 makes it more (`--debug`).
const LOGGED: &str = "warn";

const USAGE: &str =
    "usage: mountpoint-peer BUCKET DIR --endpoint URL --region R [--allow-overwrite] [--allow-delete]";

/// The command line.
struct Arguments {
    bucket: String,
    dir: PathBuf,
    endpoint: String,
    region: String,
    allow_overwrite: bool,
    allow_delete: bool,
}

impl Arguments {
    fn parse(words: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut words = words.into_iter();
        let (mut endpoint, mut region, mut allow_overwrite, mut allow_delete) = (None, None, false, false);
        let mut places = Vec::new();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--endpoint" => endpoint = words.next(),
                "--region" => region = words.next(),
                "--allow-overwrite" => allow_overwrite = true,
                "--allow-delete" => allow_delete = true,
                option if option.starts_with('-') => bail!("unknown option {option}\n{USAGE}"),
                _ => places.push(word),
            }
        }
        let Ok([bucket, dir]) = <[String; 2]>::try_from(places) else { bail!(USAGE) };
        let (Some(endpoint), Some(region)) = (endpoint, region) else { bail!(USAGE) };
        Ok(Self { bucket, dir: dir.into(), endpoint, region, allow_overwrite, allow_delete })
    }
}

/// The libraries that it is made of, as its Cargo.toml pins them.
fn versions() -> String {
    let mut pinned: Vec<String> = include_str!("../Cargo.toml")
        .lines()
        .filter(|line| line.starts_with("mountpoint-s3-"))
        .map(|line| line.replace(" = \"=", " ").replace('"', ""))
        .collect();
    pinned.sort_by_key(|library| !library.starts_with("mountpoint-s3-fs"));
    pinned.join(", ")
}

/// Mounts the bucket.
fn mount(arguments: Arguments) -> Result<FuseSession> {
    let path = S3Path::new(Bucket::new(arguments.bucket)?, Prefix::empty());

    // The memory that parts of reads and of writes share. Those of reads can be taken back, as they can be read again.
    let memory = ((effective_total_memory() / 100 * MEMORY_PERCENT) as usize).max(MINIMUM_MEM_LIMIT);
    let parts = PartConfig::with_part_size(PART).validate(MemoryLimitSetting::Default(memory))?;
    let sizes = [CandidateSize::prunable(parts.read_size_bytes), CandidateSize::new(parts.write_size_bytes)];
    let pool = PagedPool::config().with_candidate_sizes(sizes).with_memory_limit(memory).build();

    let client = ClientConfig {
        region: Region::new_user_specified(arguments.region),
        endpoint_url: Some(arguments.endpoint),
        addressing_style: AddressingStyle::Path,
        dual_stack: false,
        transfer_acceleration: false,
        auth_config: S3ClientAuthConfig::Default,
        requester_pays: false,
        expected_bucket_owner: None,
        // On a machine of EC2 the program asks what that one can do; elsewhere it is this.
        throughput_target: TargetThroughputSetting::Default,
        bind: None,
        part_config: parts,
        user_agent: UserAgent::new(Some("mountpoint-peer".into())),
        tls_config: None,
    }
    .create_client(pool.clone(), Some(&path))
    .context("the bucket cannot be listed")?;
    let runtime = Runtime::new(client.event_loop_group());

    let filesystem = S3FilesystemConfig {
        allow_overwrite: arguments.allow_overwrite,
        allow_delete: arguments.allow_delete,
        s3_personality: S3Personality::infer_from_bucket(&path.bucket, &client.endpoint_config()),
        ..Default::default()
    };
    let inodes = Superblock::new(
        client.clone(),
        path,
        SuperblockConfig {
            cache_config: filesystem.cache_config.clone(),
            s3_personality: filesystem.s3_personality,
        },
    );
    let session = FuseSessionConfig::new(MountPoint::new(&arguments.dir)?, FuseOptions::default(), THREADS)?;
    MountpointConfig::new(session, filesystem, DataCacheConfig::default())?
        .create_fuse_session(inodes, client, runtime, pool)
        .with_context(|| format!("{} cannot be mounted", arguments.dir.display()))
}

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    if words == ["--version"] {
        println!("{}", versions());
        return Ok(());
    }
    let arguments = Arguments::parse(words)?;
    let _logging = init_logging(LoggingConfig {
        log_file: None,
        log_to_stdout: true,
        default_filter: format!("{LOGGED},{AWSCRT_LOG_TARGET}=off"),
    })?;
    let _metrics = metrics::install(None)?;
    mount(arguments)?.join()
}
