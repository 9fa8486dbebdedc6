//! Small programs in C, for what scripts cannot ask for: the same program in an ordinary directory and in a volume. Skipped without gcc.

mod rig;
use rig::Rig;
use std::process::{Command, Stdio};

/// Compiles `name` in the directory where programs stand, with these options of gcc.
fn compiles(rig: &Rig, name: &str, source: &str, options: &[&str]) -> bool {
    std::fs::write(rig.work.path().join("a.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o", name, "a.c"]).args(options).current_dir(rig.work.path()).stderr(Stdio::null());
    let there = gcc.status().is_ok_and(|s| s.success());
    if !there {
        eprintln!("skipped: there is no gcc that compiles {name}");
    }
    there
}

/// An allocator that reads its settings while it holds its lock, as jemalloc does.
const ALLOCATOR: &str = r#"
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char room[64 << 20] __attribute__((aligned(16)));
static size_t used, begun;
void *malloc(size_t n) {
    pthread_mutex_lock(&lock);
    if (!begun) {
        char settings[100];
        begun = 1 + (readlink("/etc/allocator.conf", settings, sizeof settings) > 0);
    }
    n = (n + 31) & ~(size_t)15;
    char *p = n <= sizeof room - used ? room + used : NULL;
    if (p) { used += n; *(size_t *)p = n; p += 16; }
    pthread_mutex_unlock(&lock);
    return p;
}
void free(void *p) {}
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *old, size_t n) {
    void *p = malloc(n);
    if (old && p) { size_t had = *(size_t *)((char *)old - 16) - 16; memcpy(p, old, had < n ? had : n); }
    return p;
}
void *memalign(size_t a, size_t n) { char *p = malloc(n + a); return p ? p + (-(size_t)p & (a - 1)) : p; }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **to, size_t a, size_t n) { return (*to = memalign(a, n)) ? 0 : 12; }
"#;

/// A library whose constructor, which runs before ours, uses files.
const CONSTRUCTOR: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("EARLY"), O_CREAT | O_WRONLY | O_APPEND, 0644);
    if (fd >= 0) { write(fd, "early\n", 6); close(fd); }
}
"#;

#[test]
fn allocators_that_call_while_they_begin() {
    let rig = Rig::new();
    if !compiles(&rig, "alloc.so", ALLOCATOR, &["-shared", "-fPIC"]) {
        return;
    }
    let with = "export LD_PRELOAD=$LD_PRELOAD:$PWD/alloc.so; timeout 10";
    rig.same(&format!("echo file > $T/f; {with} cat $T/f; echo $?; timeout 10 wc -c < $T/f; echo $?"));
    rig.same(&format!("{with} bash -c 'mkdir $T/d && cd $T/d && echo in > g && cat g $T/f; ls $T' > $T/out 2>&1; echo $?; cat $T/out"));
    let found = Command::new("ldconfig").arg("-p").output();
    if found.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("libjemalloc.so.2")) {
        rig.same("export LD_PRELOAD=$LD_PRELOAD:libjemalloc.so.2; timeout 10 cat $T/f; echo $?; timeout 10 sh -c 'cat $T/f; echo more >> $T/f'; wc $T/f");
    }
}

#[test]
fn files_in_constructors() {
    let rig = Rig::new();
    if compiles(&rig, "early.so", CONSTRUCTOR, &["-shared", "-fPIC"]) {
        rig.same("export EARLY=$T/early; LD_PRELOAD=$LD_PRELOAD:$PWD/early.so timeout 10 cat /dev/null; cat $T/early");
    }
}

