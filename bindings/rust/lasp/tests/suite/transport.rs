//! A transport in Rust: the vectors over it give the same bits as over the library's own, and whatever it does
//! wrong becomes a status.
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lasp::{Comm, Context, ContextOptions, Plan, Schedule, Status, Transport, TransportError, TransportInfo};

use crate::helpers::{is, refused, small_problem};
use crate::run::run;
use crate::vectors::Vector;

/// One mailbox for a whole group.
#[derive(Default)]
struct Post {
    letters: Mutex<Letters>,
    arrived: Condvar,
    alive: AtomicUsize,             // transports that were not dropped
    open: AtomicUsize,              // requests that were not ended
    limit: Mutex<Option<Duration>>, // the longest that a wait was given
}

#[derive(Default)]
struct Letters {
    waiting: HashMap<(usize, usize, i32), VecDeque<Vec<u8>>>, // by sender, receiver and tag
    aborted: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    PanicInReceive,
    FailInSend,
    CallTheLibrary,
    FlipABit,
    LoseRankTwo,
}

struct Rank {
    post: Arc<Post>,
    info: TransportInfo,
    fault: Fault,
}

/// What a receive waits for; None is a send, which is done at once.
struct Ticket {
    from: Option<(usize, usize, i32)>,
    post: Arc<Post>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.post.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.post.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rank {
    fn ticket(&self, from: Option<(usize, usize, i32)>) -> Ticket {
        self.post.open.fetch_add(1, Ordering::Relaxed);
        Ticket { from, post: Arc::clone(&self.post) }
    }
}

impl Transport for Rank {
    type Request = Ticket;

    fn info(&self) -> TransportInfo {
        self.info.clone()
    }

    fn send(&self, data: &[u8], peer: usize, tag: i32) -> Result<Ticket, TransportError> {
        if self.fault == Fault::FailInSend {
            return Err(TransportError::Failed);
        }
        if self.fault == Fault::CallTheLibrary {
            assert_eq!(Comm::single().unwrap_err().status(), Status::IN_USE);
            assert_eq!(lasp::version().unwrap_err().status(), Status::IN_USE);
        }
        let mut letter = data.to_vec();
        if self.fault == Fault::FlipABit {
            letter[0] ^= 1;
        }
        let mut letters = self.post.letters.lock().unwrap();
        letters.waiting.entry((self.info.rank, peer, tag)).or_default().push_back(letter);
        self.post.arrived.notify_all();
        Ok(self.ticket(None))
    }

    fn receive(&self, _bytes: usize, peer: usize, tag: i32) -> Result<Ticket, TransportError> {
        if self.fault == Fault::PanicInReceive {
            std::panic::resume_unwind(Box::new("a panic, without its message"));
        }
        Ok(self.ticket(Some((peer, self.info.rank, tag))))
    }

    fn test(&self, ticket: &mut Ticket) -> Result<bool, TransportError> {
        let letters = self.post.letters.lock().unwrap();
        Ok(ticket.from.map_or(true, |from| letters.waiting.get(&from).map_or(false, |queue| !queue.is_empty())))
    }

    fn wait(&self, ticket: &mut Ticket, data: &mut [u8], limit: Option<Duration>) -> Result<(), TransportError> {
        let from = match ticket.from {
            Some(from) => from,
            None => return Ok(()),
        };
        let mut longest = self.post.limit.lock().unwrap();
        *longest = limit.max(*longest);
        drop(longest);
        if self.fault == Fault::LoseRankTwo {
            return Err(TransportError::PeerLost(Some(2)));
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut letters = self.post.letters.lock().unwrap();
        loop {
            if let Some(letter) = letters.waiting.get_mut(&from).and_then(VecDeque::pop_front) {
                data.copy_from_slice(&letter);
                return Ok(());
            }
            if letters.aborted {
                return Err(TransportError::Aborted);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(TransportError::PeerLost(Some(from.0)));
            }
            let nap = left.unwrap_or(Duration::from_secs(1));
            letters = self.post.arrived.wait_timeout(letters, nap).unwrap().0;
        }
    }

    fn abort(&self, _lost_rank: Option<usize>) {
        self.post.letters.lock().unwrap().aborted = true;
        self.post.arrived.notify_all();
    }
}

fn group(nranks: usize, fault: Fault) -> (Arc<Post>, Vec<Comm>) {
    let post = Arc::new(Post::default());
    let comms = (0..nranks).map(|rank| {
        post.alive.fetch_add(1, Ordering::Relaxed);
        let info = TransportInfo { local_ranks: nranks, ..TransportInfo::new("post", rank, nranks) };
        Comm::custom(Rank { post: Arc::clone(&post), info, fault }).unwrap()
    });
    let comms = comms.collect();
    (post, comms)
}

#[test]
fn vectors_over_it_give_the_same_bits() {
    for (name, nranks, schedule) in [
        ("head_packed", 3, Schedule::Ring),
        ("channel_basic", 4, Schedule::AllGather),
        ("scalar_basic", 2, Schedule::AllScan),
        ("exact_none", 4, Schedule::Doubling),
    ] {
        let v = Vector::named(name);
        let expected = run(&v, Comm::threads(nranks).unwrap(), schedule).unwrap();
        for fault in [Fault::None, Fault::CallTheLibrary] {
            let (post, comms) = group(nranks, fault);
            assert!(run(&v, comms, schedule).unwrap() == expected, "{}", name);
            assert_eq!(post.open.load(Ordering::Relaxed), 0, "{}: requests left open", name);
            assert_eq!(post.alive.load(Ordering::Relaxed), 0, "{}: transports left alive", name);
        }
    }
}

#[test]
fn its_traffic_is_counted() {
    let (_post, mut comms) = group(1, Fault::None);
    let context = Context::new(comms.pop().unwrap()).unwrap();
    let traffic = context.comm().traffic().unwrap();
    assert_eq!((traffic.bytes_sent, traffic.messages_received), (0, 0));
    assert_eq!((context.comm().rank(), context.comm().nranks()), (0, 1));
}

#[test]
fn its_faults_become_statuses() {
    for fault in [Fault::PanicInReceive, Fault::FailInSend] {
        let (post, mut comms) = group(2, fault);
        let _absent = comms.pop();
        let options = ContextOptions::new().time_limit(Duration::from_millis(50));
        let context = Context::with_options(comms.pop().unwrap(), options).unwrap();
        refused(Plan::new(&context, &small_problem()), Status::TRANSPORT, "post");
        drop(context);
        assert_eq!(post.open.load(Ordering::Relaxed), 0, "requests left open");
    }
}

// Every message of rank 0 arrives changed; rank 1 finds it at the first.
#[test]
fn a_changed_message_is_found() {
    let (post, mut comms) = group(2, Fault::FlipABit);
    let sound = Rank {
        post: Arc::clone(&post),
        info: TransportInfo { local_ranks: 2, ..TransportInfo::new("post", 1, 2) },
        fault: Fault::None,
    };
    drop(comms.pop());
    post.alive.fetch_add(1, Ordering::Relaxed);
    comms.push(Comm::custom(sound).unwrap());
    let ranks = comms.into_iter().map(|comm| {
        std::thread::spawn(move || {
            let options = ContextOptions::new().time_limit(Duration::from_secs(20)).verify_messages(true);
            let context = Context::with_options(comm, options.cpu_threads(1)).unwrap();
            Plan::new(&context, &small_problem()).map(drop)
        })
    });
    let results: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    is(results[1].as_ref().unwrap_err(), Status::TRANSPORT, "rank 0");
    assert_eq!(post.open.load(Ordering::Relaxed), 0, "requests left open");
}

#[test]
fn a_lost_peer_is_named() {
    let (post, mut comms) = group(2, Fault::None);
    let _absent = comms.pop();
    let options = ContextOptions::new().time_limit(Duration::from_millis(20));
    let context = Context::with_options(comms.pop().unwrap(), options).unwrap();
    refused(Plan::new(&context, &small_problem()), Status::PEER_LOST, "rank 1");
    drop(context);
    let longest = *post.limit.lock().unwrap();
    assert!(longest.map_or(false, |limit| limit <= Duration::from_millis(20)), "a wait was given {:?}", longest);
    assert_eq!(post.open.load(Ordering::Relaxed), 0, "requests left open");
}

/// Rank 0 of three waits for rank 1 first.
#[test]
fn the_rank_that_the_transport_names_is_the_lost_one() {
    let (_post, mut comms) = group(3, Fault::LoseRankTwo);
    let options = ContextOptions::new().time_limit(Duration::from_secs(10));
    let context = Context::with_options(comms.remove(0), options).unwrap();
    refused(Plan::new(&context, &small_problem()), Status::PEER_LOST, "rank 2");
}

#[test]
fn a_refused_transport_is_dropped() {
    let post = Arc::new(Post::default());
    post.alive.fetch_add(1, Ordering::Relaxed);
    let rank = Rank { post: Arc::clone(&post), info: TransportInfo::new("post", 5, 2), fault: Fault::None };
    refused(Comm::custom(rank), Status::INVALID_ARGUMENT, "rank = 5");
    assert_eq!(post.alive.load(Ordering::Relaxed), 0);
}
