use super::*;
use crate::memory;
use crate::region::Region;
use crate::server::directories::Directories;
use crate::server::drains::Drains;
use crate::server::ear::Ear;
use crate::server::leases::Leases;
use crate::server::session::Order;
use crate::server::stats::Board;
use crate::server::tasks::Bell;
use format::shared::{PAGE_PLACES_AT, PageHeader, SESSION_BYTES, page_places};
use sim::{HandClock, Model};
use std::mem::offset_of;
use std::time::{Duration, Instant};

const INO: Ino = Ino(7);

/// A page of an arena: which, and the value of its word while it holds what it was said to hold.
type Place = (u32, u64);

struct Rig {
    arenas: Arc<Arenas>,
    changes: Arc<Changes>,
}

fn rig(pages: usize) -> Rig {
    let changes = Arc::new(Changes::new().unwrap());
    Rig { arenas: Arc::new(Arenas::new(changes.clone(), pages * PAGE)), changes }
}

impl Rig {
    fn client(&self, uid: u32) -> Arc<Client> {
        self.client_with(Cred::user(uid, uid, &[]))
    }

    fn client_with(&self, cred: Cred) -> Arc<Client> {
        let uid = cred.uid;
        let region = Arc::new(Region::map(memory::sealed(c"test", SESSION_BYTES).unwrap()).unwrap());
        let doors = fs::Watched::new(Arc::new(Model::new(HandClock::default().clock())));
        let tally = Arc::new(Board::new(&Arc::new(doors.clone()))).tally(1);
        let arena = self.arenas.of(&cred).unwrap();
        let (arenas, changes, holders) = (self.arenas.clone(), self.changes.clone(), Arc::default());
        let drains = Arc::new(Drains::new(Arc::new(Bell::new().unwrap())));
        let directories = Arc::new(Directories::new(doors.clone(), drains, (0, 0), Duration::ZERO));
        let leases = Arc::new(Leases::new(doors, Arc::new(Ear { arenas, changes, holders }), 0));
        let both = (self.arenas.clone(), arena, Arc::default());
        let lent = (leases as _, directories as _, Arc::default());
        let order = Order { of: fs::Ordered::default(), program: false };
        let client = Arc::new(Client::new(
            (uid as u64, uid as u64),
            (region, Arc::default()),
            (cred, order, Arc::default()),
            100,
            both,
            lent,
            tally,
        ));
        self.arenas.enter(&client);
        client
    }

    fn plan(&self, client: &Client, offset: u64, len: usize) -> Option<Aligned> {
        self.arenas.plan(&client.arena, INO, offset, len)
    }

    /// Where a page stands, as clients find it.
    fn place(&self, client: &Client, generation: u32, number: u64) -> Option<Place> {
        let memory = &client.arena.memory;
        page_places(INO.0, number).into_iter().find_map(|at| {
            let page = memory.word(PAGE_PLACES_AT + 4 * at).load(Ordering::SeqCst).checked_sub(1)?;
            let said =
                |field| memory.long(page as usize * size_of::<PageHeader>() + field).load(Ordering::SeqCst);
            let word = said(offset_of!(PageHeader, word));
            let fields = [
                offset_of!(PageHeader, ino),
                offset_of!(PageHeader, page),
                offset_of!(PageHeader, generation),
            ];
            let [ino, at, both] = fields.map(said);
            let is_it = [ino, at, both as u32 as u64] == [INO.0, number, generation as u64];
            (word & 1 == 1 && is_it).then_some((page, word))
        })
    }

    /// Where so many pages stand.
    fn places(&self, client: &Client, generation: u32, plan: &Aligned, count: usize) -> Vec<Place> {
        let numbers = (plan.first()..).take(count);
        numbers
            .map(|number| self.place(client, generation, number).expect("it was said to be there"))
            .collect()
    }

    fn find(&self, client: &Client, generation: u32, plan: &Aligned) -> Option<Vec<Place>> {
        self.find_read(client, generation, plan, 0)
    }

    /// As [`Rig::find`], when so many bytes were read.
    fn find_read(&self, client: &Client, generation: u32, plan: &Aligned, got: usize) -> Option<Vec<Place>> {
        let count = self.arenas.find(client, INO, generation, plan, got)?;
        Some(self.places(client, generation, plan, count))
    }

    fn fill(&self, client: &Client, generation: u32, plan: &Aligned, bytes: &[&[u8]]) -> Vec<Place> {
        let count = self.arenas.fill(client, INO, generation, plan, bytes);
        self.places(client, generation, plan, count)
    }

    fn change(&self, start: u64, end: u64) {
        let change = Change::Data { ino: INO, start, end };
        self.changes.changed(&change);
        self.arenas.changed(&change);
    }
}

fn there(client: &Client, (page, word): Place) -> bool {
    word & 1 == 1 && client.arena.word(page).load(Ordering::SeqCst) == word
}

fn bytes(client: &Client, (page, _): Place, within: usize) -> [u8; 2] {
    let mut bytes = [0; 2];
    client.arena.memory.copy_out(ARENA_DATA_AT + page as usize * PAGE + within, &mut bytes);
    bytes
}

#[test]
fn pages_come_and_go() {
    let rig = rig(1000);
    let client = rig.client(1);
    let plan = rig.plan(&client, 5000, 10).unwrap();
    assert_eq!((plan.start, plan.len), (4096, 4096));
    assert!(rig.find(&client, 1, &plan).is_none());
    let one = rig.fill(&client, 1, &plan, &[&[1; 1000], &[2; 3096]])[0];
    assert_eq!((bytes(&client, one, 999), there(&client, one)), ([1, 2], true));
    assert_eq!(rig.find(&client, 1, &plan).unwrap()[0], one);
    assert!(rig.find(&client, 2, &plan).is_none(), "of another file with its number");
    // The end of the file is filled up with zeros.
    let plan = rig.plan(&client, 8192, 4096).unwrap();
    let two = rig.fill(&client, 1, &plan, &[&[3; 100]])[0];
    assert_eq!((bytes(&client, two, 99), rig.arenas.resident()), ([3, 0], 2));
    rig.change(8191, 8192);
    assert!(!there(&client, one) && there(&client, two));
    rig.change(0, u64::MAX);
    assert!(!there(&client, two));
    // Their memory is used again.
    let plan = rig.plan(&client, 0, 2 * PAGE).unwrap();
    let again = rig.fill(&client, 1, &plan, &[&[4; 2 * PAGE]]);
    assert_eq!((again.len(), rig.arenas.resident()), (2, 2));
    rig.arenas.changed(&Change::Attr { ino: INO });
    assert!(!again.iter().any(|&place| there(&client, place)));
}

#[test]
fn what_changed_while_it_was_read_is_left_out() {
    let rig = rig(1000);
    let client = rig.client(1);
    let plan = rig.plan(&client, 0, 4096).unwrap();
    rig.change(0, 1);
    assert!(rig.fill(&client, 1, &plan, &[&[1; 4096]]).is_empty());
    assert_eq!(rig.arenas.resident(), 0);
}

#[test]
fn an_inode_that_became_another_file() {
    let rig = rig(1000);
    let client = rig.client(1);
    let plan = rig.plan(&client, 0, 4096).unwrap();
    let old = rig.fill(&client, 1, &plan, &[&[1; 4096]])[0];
    let plan = rig.plan(&client, 4096, 4096).unwrap();
    let new = rig.fill(&client, 2, &plan, &[&[2; 4096]])[0];
    assert!(!there(&client, old) && there(&client, new));
}

#[test]
fn users_have_memory_of_their_own() {
    let rig = rig(1000);
    let (a, b, c) = (rig.client(1), rig.client(2), rig.client(1));
    assert!(Arc::ptr_eq(&a.arena, &c.arena) && !Arc::ptr_eq(&a.arena, &b.arena));
    let plan = rig.plan(&a, 0, 4096).unwrap();
    let of_a = rig.fill(&a, 1, &plan, &[&[1; 4096]])[0];
    assert!(rig.find(&b, 1, &plan).is_none());
    assert_eq!(rig.find(&c, 1, &plan).unwrap()[0], of_a);
    a.arena.tell_inode(&crate::wire::some_attr(7, 5), 1);
    assert!(c.arena.told(INO).is_some() && b.arena.told(INO).is_none());
    let of_b = rig.fill(&b, 1, &plan, &[&[1; 4096]])[0];
    rig.change(0, 1);
    assert!(!there(&a, of_a) && !there(&b, of_b));
    // What one group may read is not for the others, whoever the user is.
    let of = |gid, groups| rig.client_with(Cred::user(1, gid, groups));
    let all = [a, of(2, &[]), of(1, &[3]), of(1, &[4]), of(1, &[3, 4])];
    for (i, one) in all.iter().enumerate() {
        let same = all.iter().filter(|other| Arc::ptr_eq(&one.arena, &other.arena));
        assert_eq!(same.count(), 1, "number {i} shares its memory");
    }
    assert!(Arc::ptr_eq(&of(1, &[4, 3]).arena, &all[4].arena), "the very same groups");
}

#[test]
fn memory_is_bounded_and_what_is_used_stays() {
    let rig = rig(4 * CHUNK);
    let (client, other) = (rig.client(1), rig.client(2));
    let fill = |client: &Arc<Client>, at: u64| {
        let plan = rig.plan(client, at * (CHUNK * PAGE) as u64, CHUNK * PAGE).unwrap();
        let places = rig.fill(client, 1, &plan, &[&[at as u8; CHUNK * PAGE]]);
        assert!(rig.arenas.resident() <= 4 * CHUNK && places.len() == CHUNK);
        places[0]
    };
    let used = fill(&client, 0);
    for at in 1..200 {
        client.region.mark(mark(INO.0, 0), true);
        let place = fill(&client, at);
        assert!(there(&client, place) && there(&client, used), "at {at}");
        assert_eq!(bytes(&client, place, 5), [at as u8; 2]);
    }
    // Another user gets room too.
    let theirs = fill(&other, 3);
    assert!(there(&other, theirs));
}

#[test]
fn reading_in_order_reads_ahead() {
    let rig = rig(1000);
    let client = rig.client(1);
    let mut at = 0;
    for wanted in [1, 1, 2, 4, 8] {
        let plan = rig.plan(&client, at * PAGE as u64, PAGE).unwrap();
        assert_eq!(plan.len / PAGE, wanted, "at page {at}");
        rig.fill(&client, 1, &plan, &[&vec![1; plan.len]]);
        at += wanted as u64;
    }
    assert_eq!(rig.plan(&client, 0, PAGE).unwrap().len, PAGE);
    assert!(rig.plan(&client, 0, ANSWER_PAGES * PAGE + 1).is_none(), "too much for one answer");
}

#[test]
fn a_large_file_that_is_read_in_order_takes_memory_when_it_is_read_again() {
    const PAGES: usize = 5000;
    let rig = rig(2 * PAGES);
    let client = rig.client(1);
    // In how many messages a file of this many pages is read, page after page.
    let read = |pages: usize| {
        let (mut at, mut messages) = (0, 0);
        while at < pages {
            if rig.place(&client, 1, at as u64).is_none() {
                let mut plan = rig.plan(&client, (at * PAGE) as u64, PAGE).unwrap();
                plan.ends_at((pages * PAGE) as u64);
                let there = rig.fill(&client, 1, &plan, &[&vec![1; plan.len.min((pages - at) * PAGE)]]);
                assert!(!there.is_empty(), "at {at}");
                messages += 1;
            }
            at += 1;
        }
        messages
    };
    let once = read(PAGES);
    assert!((PAGES / CHUNK..PAGES / CHUNK + 8).contains(&once), "{once}");
    let taken = rig.arenas.resident();
    assert!(taken <= 10 * CHUNK, "{taken}");
    // Here and there is not in order.
    let plan = rig.plan(&client, 100 * PAGE as u64, PAGE).unwrap();
    rig.fill(&client, 1, &plan, &[&[1; PAGE]]);
    // As far as there is memory by then.
    let begun = Instant::now();
    while read(PAGES) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", rig.arenas.resident());
        std::thread::sleep(Duration::from_millis(5));
    }
    let taken = rig.arenas.resident();
    assert!((PAGES..=PAGES + 10 * CHUNK).contains(&taken), "{taken}");
}

#[test]
fn reading_here_and_there_may_get_whole_pieces() {
    let rig = rig((SCATTERED + 2) * CHUNK);
    let client = rig.client(1);
    let plan = |piece: usize| rig.plan(&client, (piece * PIECE_BYTES + 5 * PAGE) as u64, PAGE).unwrap();
    for piece in 0..SCATTERED {
        let plan = plan(2 * piece);
        assert!(!plan.may_be_wider, "{piece}: that is not known yet");
        rig.fill(&client, 1, &plan, &[&[1; PAGE]]);
    }
    let mut whole = plan(20);
    assert!(whole.may_be_wider);
    whole.widen();
    assert_eq!((whole.start as usize, whole.len), (20 * PIECE_BYTES, PIECE_BYTES));
    assert_eq!(rig.fill(&client, 1, &whole, &[&[2; PIECE_BYTES]]).len(), CHUNK);
    let mut end = plan(22);
    // Of a piece at the end of the file there is less, but what was asked for.
    end.widen();
    end.ends_at((22 * PIECE_BYTES + 6 * PAGE) as u64);
    let pages = rig.fill(&client, 1, &end, &[&[3; 6 * PAGE]]);
    assert_eq!((pages.len(), rig.find(&client, 1, &end)), (6, Some(pages)));
    // One page after the other is read ahead, and there must be room without driving something out.
    assert!(!rig.plan(&client, (22 * PIECE_BYTES + 6 * PAGE) as u64, PAGE).unwrap().may_be_wider);
    assert!(plan(30).may_be_wider);
    rig.fill(
        &client,
        1,
        &rig.plan(&client, 40 * PIECE_BYTES as u64, 4 * PIECE_BYTES).unwrap(),
        &[&[4; 4 * PIECE_BYTES]],
    );
    assert!(!plan(50).may_be_wider);
}

#[test]
fn one_answer_tells_of_several_pieces() {
    let rig = rig(1000);
    let client = rig.client(1);
    let first = CHUNK - 2;
    let mut plan = rig.plan(&client, (first * PAGE) as u64, ANSWER_PAGES * PAGE).unwrap();
    let content: Vec<u8> = (0..CHUNK + 5).flat_map(|page| vec![page as u8; PAGE]).collect();
    let filled = rig.fill(&client, 1, &plan, &[&content]);
    assert_eq!(filled.len(), CHUNK + 5);
    for (page, &place) in filled.iter().enumerate() {
        assert_eq!((bytes(&client, place, 9), there(&client, place)), ([page as u8; 2], true));
    }
    assert!(rig.find(&client, 1, &plan).is_none(), "the file may be longer");
    plan.ends_at(((first + CHUNK + 5) * PAGE) as u64 - 7);
    assert_eq!(rig.find(&client, 1, &plan), Some(filled.clone()));
    // A page in the second piece goes.
    rig.change((CHUNK * PAGE) as u64, (CHUNK * PAGE) as u64 + 1);
    assert!(rig.find(&client, 1, &plan).is_none());
    assert!(!there(&client, filled[2]) && there(&client, filled[1]) && there(&client, filled[3]));
}

#[test]
fn a_page_that_has_less_than_was_read_is_put_there_again() {
    let rig = rig(1000);
    let client = rig.client(1);
    let plan = rig.plan(&client, 4096, 5000).unwrap();
    let old = rig.fill(&client, 1, &plan, &[&[1; 5000]]);
    assert_eq!(old.len(), 2);
    assert_eq!(rig.find_read(&client, 1, &plan, 5000).unwrap(), old);
    assert_eq!(rig.find_read(&client, 1, &plan, 4000).unwrap(), old, "what is cut off is told");
    // It has grown, and nobody has been told.
    assert!(rig.find_read(&client, 1, &plan, 5001).is_none());
    let new = rig.fill(&client, 1, &plan, &[&[2; 5500]]);
    assert_eq!(new[0], old[0], "that one is whole");
    assert!(!there(&client, old[1]) && there(&client, new[1]), "who copies it copies it again");
    assert_eq!(new[1].0, old[1].0);
    assert_eq!((bytes(&client, new[1], 0), bytes(&client, new[1], 1402)), ([2, 2], [2, 2]));
    assert_eq!(bytes(&client, new[1], 1403), [2, 0]);
    assert_eq!(rig.find_read(&client, 1, &plan, 5500).unwrap(), new);
    assert_eq!(rig.arenas.resident(), 2);
    // One who read it earlier comes later.
    assert_eq!(rig.fill(&client, 1, &plan, &[&[1; 5000]]), new);
}
