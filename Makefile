# make demo       builds, and shows the main job on real input, with three crashes in the middle
# make demo-object  a bucket of an S3 server (installed for it) as a file system
# make test       everything that must hold: format, clippy, all tests, doctests, docs, installation, POSIX over FUSE and past the kernel
# make install    to PREFIX (default /usr/local): the command, the library for C, and the helpers of mount(8) in SBINDIR
# make bench      the benchmarks (freehold bench)
# make lab        real NVMe controllers in a small virtual machine: lab/tests (TESTS="claim peers" for some of them)
# make clean

PREFIX ?= /usr/local
SBINDIR ?= /sbin
UNITDIR ?= /etc/systemd/system
DESTDIR ?=
CARGO ?= cargo
PROFILE ?= release
BUILT = $(or $(CARGO_TARGET_DIR),target)/$(PROFILE:dev=debug)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
HELPERS := mount.freehold mount.fuse.freehold umount.freehold umount.fuse.freehold mkfs.freehold fsck.freehold

.PHONY: all build demo demo-object test lab bench install uninstall clean

all: build

build:
	$(CARGO) build --profile $(PROFILE) --locked -p freehold -p freehold-preload -p freehold-capi -p freehold-sqlite

demo:
	./scripts/demo.sh

demo-object:
	./scripts/demo-object.sh

test:
	./scripts/test.sh

lab:
	./lab/run.sh $(TESTS)

bench: build
	$(CARGO) build --profile $(PROFILE) --locked -p freehold-workload
	$(BUILT)/freehold bench $(ARGS)

install: build
	install -D -m 755 $(BUILT)/freehold $(DESTDIR)$(PREFIX)/bin/freehold
	install -D -m 755 $(BUILT)/libfreehold_preload.so $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_preload.so
	install -D -m 755 $(BUILT)/libfreehold_sqlite.so $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_sqlite.so
	install -D -m 755 $(BUILT)/libfreehold.so $(DESTDIR)$(PREFIX)/lib/libfreehold.so
	install -D -m 644 $(BUILT)/libfreehold.a $(DESTDIR)$(PREFIX)/lib/libfreehold.a
	install -D -m 644 crates/capi/include/freehold.h $(DESTDIR)$(PREFIX)/include/freehold.h
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' contrib/freehold.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/freehold.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/freehold.pc
	install -d $(DESTDIR)$(SBINDIR)
	for h in $(HELPERS); do ln -sf $(PREFIX)/bin/freehold $(DESTDIR)$(SBINDIR)/$$h; done
	@if [ -d $(DESTDIR)$(UNITDIR) ]; then \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' contrib/freehold.service > $(DESTDIR)$(UNITDIR)/freehold.service; \
		echo "unit installed: $(DESTDIR)$(UNITDIR)/freehold.service"; fi

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/freehold $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_preload.so $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_sqlite.so $(DESTDIR)$(UNITDIR)/freehold.service
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,lib/libfreehold.so lib/libfreehold.a lib/pkgconfig/freehold.pc include/freehold.h)
	-rmdir $(DESTDIR)$(PREFIX)/lib/freehold 2>/dev/null
	for h in $(HELPERS); do rm -f $(DESTDIR)$(SBINDIR)/$$h; done

clean:
	$(CARGO) clean
