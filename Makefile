# make demo       builds, and shows the main job on real input, with a crash in the middle
# make test       everything that must hold: format, clippy, all tests, doctests, docs, POSIX over FUSE
# make install    to PREFIX (default /usr/local), with the helpers of mount(8) in SBINDIR
# make bench      the benchmarks (freehold bench)
# make clean

PREFIX ?= /usr/local
SBINDIR ?= /sbin
UNITDIR ?= /etc/systemd/system
DESTDIR ?=
CARGO ?= cargo
HELPERS := mount.freehold mount.fuse.freehold umount.freehold umount.fuse.freehold mkfs.freehold fsck.freehold

.PHONY: all build demo test bench install uninstall clean

all: build

build:
	$(CARGO) build --release --locked -p freehold -p freehold-preload

demo:
	./scripts/demo.sh

test:
	./scripts/test.sh

bench: build
	./target/release/freehold bench $(ARGS)

install: build
	install -D -m 755 target/release/freehold $(DESTDIR)$(PREFIX)/bin/freehold
	install -D -m 755 target/release/libfreehold_preload.so $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_preload.so
	install -d $(DESTDIR)$(SBINDIR)
	for h in $(HELPERS); do ln -sf $(PREFIX)/bin/freehold $(DESTDIR)$(SBINDIR)/$$h; done
	@if [ -d $(DESTDIR)$(UNITDIR) ]; then \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' contrib/freehold.service > $(DESTDIR)$(UNITDIR)/freehold.service; \
		echo "unit installed: $(DESTDIR)$(UNITDIR)/freehold.service"; fi

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/freehold $(DESTDIR)$(PREFIX)/lib/freehold/libfreehold_preload.so $(DESTDIR)$(UNITDIR)/freehold.service
	for h in $(HELPERS); do rm -f $(DESTDIR)$(SBINDIR)/$$h; done

clean:
	$(CARGO) clean
