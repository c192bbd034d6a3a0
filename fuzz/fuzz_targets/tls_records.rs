//! TLS records of a store after the handshake, in pieces of any size: no panic, no content that was not sealed or is out of turn,
//! no memory without an end, no word of our own that the store can't open; and of sound records the whole content.
//!
//! Records are built from a grammar and sealed, so that they get past the keys; then some are spoiled. Raw bytes are tried too.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mountpoint::net::fuzzing::{Conversation, NAME, Parties};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const CONTENT: u8 = 23;
/// Bytes of content in a record.
const CONTENT_MAX: usize = 16 << 10;
/// Records without content in a row that a sound store may send here: fewer than the client bears.
const SILENT_MAX: usize = 30;
/// Bytes of records without content; the client's limit is 256 KiB.
const SILENT_BYTES_MAX: usize = 250 << 10;
/// Bytes of the type and the version in front of a record.
const OUTER: usize = 3;
/// Far more than a connection holds.
const MEMORY_MAX: usize = 512 << 10;

#[derive(Arbitrary, Debug)]
struct Input {
    is_tls13: bool,
    /// Bytes that come at once, in turn; and that are read at once.
    pieces: Vec<u8>,
    rooms: Vec<u16>,
    acts: Vec<Act>,
}

#[derive(Arbitrary, Debug)]
enum Act {
    /// Content of a sound store.
    Content {
        bytes: Vec<u8>,
        padding: u8,
    },
    Long(u16),
    Ticket {
        ticket: Vec<u8>,
        parts: u8,
    },
    Update {
        asks: bool,
    },
    /// A record that an unsound store may send.
    Record {
        kind: u8,
        content: Vec<u8>,
    },
    Handshake(Vec<u8>),
    Alert {
        level: u8,
        description: u8,
    },
    /// A key update that the store itself does not follow.
    Lie,
    Raw(Vec<u8>),
    Spoiled {
        bytes: Vec<u8>,
        spoil: Spoil,
    },
    /// The client's turn: it reads, it writes, and the wire takes this number of bytes.
    Read,
    Write(u16),
    Takes(u16),
}

/// Damage to a record on its way.
#[derive(Arbitrary, Debug)]
enum Spoil {
    Flipped { at: u16, bit: u8 },
    Shortened(u16),
    Repeated,
    Lost,
}

struct Game {
    talk: Conversation,
    is_tls13: bool,
    rooms: Vec<usize>,
    turn: usize,
    /// Content that may be read.
    sealed: Vec<u8>,
    got: Vec<u8>,
    written: Vec<u8>,
    heard: Vec<u8>,
    /// Whether all records so far were sound: then the client reads all content.
    is_sound: bool,
    /// Whether all bytes so far are the sealed ones, so that bytes sealed now can be read.
    is_whole: bool,
    silent: usize,
    silent_bytes: usize,
    end: Option<String>,
}

/// The parties of TLS 1.2 and of TLS 1.3.
static PARTIES: LazyLock<[Parties; 2]> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec![NAME.to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    [false, true].map(|is_tls13| Parties::new(is_tls13, certificate.der(), &key.serialize_der()))
});

impl Game {
    fn play(&mut self, act: Act) {
        match act {
            Act::Content { bytes, padding } => self.content(bytes, padding.into()),
            Act::Long(len) => {
                let len = usize::from(len) % (CONTENT_MAX + 3);
                self.content((0..len).map(|i| (i % 251) as u8).collect(), 0);
            }
            Act::Ticket { ticket, parts } => self.ticket(&ticket, parts.into()),
            Act::Update { asks } => {
                self.is_sound &= self.is_tls13;
                self.quiet(HANDSHAKE, &[24, 0, 0, 1, asks.into()]);
                self.is_whole &= self.talk.renew();
            }
            Act::Record { kind, content } => {
                self.odd(kind, &content);
                // For type 0 the type is the last byte that is not zero.
                let len = content.iter().rposition(|&byte| byte != 0).unwrap_or(0);
                if kind == CONTENT {
                    self.may_come(&content);
                } else if kind == 0 && content.get(len) == Some(&CONTENT) {
                    self.may_come(&content[..len]);
                }
            }
            Act::Handshake(message) => self.odd(HANDSHAKE, &message),
            Act::Alert { level, description } => self.odd(ALERT, &[level, description]),
            Act::Lie => {
                self.odd(HANDSHAKE, &[24, 0, 0, 1, 0]);
                self.is_whole = false;
            }
            Act::Raw(bytes) => {
                self.talk.say(&bytes);
                self.spoiled(!bytes.is_empty());
            }
            Act::Spoiled { bytes, spoil } => self.spoil(&bytes, &spoil),
            Act::Read => self.read(),
            Act::Write(len) => {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
                if let Some(Ok(n)) = self.talk.write(&bytes) {
                    self.written.extend_from_slice(&bytes[..n]);
                }
                self.hear();
            }
            Act::Takes(bytes) => self.talk.takes(bytes.into()),
        }
    }

    fn content(&mut self, mut bytes: Vec<u8>, padding: usize) {
        let padding = if self.is_tls13 { padding } else { 0 };
        if bytes.is_empty() {
            self.is_silent(padding);
        } else {
            (self.silent, self.silent_bytes) = (0, 0);
        }
        self.is_sound &= bytes.len() + padding <= CONTENT_MAX;
        self.may_come(&bytes);
        if padding == 0 {
            return self.talk.tell(CONTENT, &bytes);
        }
        // The type stands behind the content, and the last zero is sealed as the type.
        bytes.push(CONTENT);
        bytes.resize(bytes.len() + padding - 1, 0);
        self.talk.tell(0, &bytes);
    }

    /// A session ticket, in up to four records.
    fn ticket(&mut self, ticket: &[u8], parts: usize) {
        let ticket = &ticket[..ticket.len().min(60_000)];
        let mut payload = vec![0, 0, 0, 9, 0, 0, 0, 0, 0];
        payload.extend((ticket.len() as u16).to_be_bytes());
        payload.extend_from_slice(ticket);
        payload.extend([0, 0]);
        let mut message = (payload.len() as u32).to_be_bytes().to_vec();
        message[0] = 4;
        message.extend(payload);
        self.is_sound &= self.is_tls13 && !ticket.is_empty();
        for part in message.chunks(message.len().div_ceil(parts % 4 + 1).min(CONTENT_MAX)) {
            self.quiet(HANDSHAKE, part);
        }
    }

    /// A record that brings no content.
    fn quiet(&mut self, kind: u8, content: &[u8]) {
        self.is_silent(content.len());
        self.talk.tell(kind, content);
    }

    /// Notes that the next record brings no content, and has this many bytes besides those of each record.
    fn is_silent(&mut self, bytes: usize) {
        self.silent += 1;
        self.silent_bytes += bytes + 40;
        self.is_sound &= self.silent <= SILENT_MAX && self.silent_bytes <= SILENT_BYTES_MAX;
    }

    /// Notes bytes that were sealed as content.
    fn may_come(&mut self, content: &[u8]) {
        if self.is_whole {
            self.sealed.extend_from_slice(content);
        }
    }

    fn odd(&mut self, kind: u8, content: &[u8]) {
        self.is_sound = false;
        self.talk.tell(kind, content);
    }

    fn spoil(&mut self, bytes: &[u8], spoil: &Spoil) {
        let mut record = self.talk.sealed(CONTENT, bytes);
        match *spoil {
            Spoil::Flipped { at, bit } => {
                let at = usize::from(at) % record.len();
                record[at] ^= 1 << (bit % 8);
                // rustls authenticates the constants that RFC 8446, 5.2 gives for the outer type and version, not the received ones: it opens
                // such a record, and the content is what was sealed.
                if self.is_tls13 && at < OUTER {
                    self.may_come(bytes);
                    self.is_sound = false;
                    return self.talk.say(&record);
                }
            }
            Spoil::Shortened(by) => record.truncate(record.len() - 1 - usize::from(by) % record.len()),
            Spoil::Repeated => {
                self.may_come(bytes);
                record.extend_from_within(..);
            }
            Spoil::Lost => record.clear(),
        }
        self.talk.say(&record);
        self.spoiled(true);
    }

    fn spoiled(&mut self, is: bool) {
        self.is_sound &= !is;
        self.is_whole &= !is;
    }

    /// Reads all that there is.
    fn read(&mut self) {
        loop {
            let room = match self.rooms.len() {
                0 => 1000,
                rooms => self.rooms[self.turn % rooms].max(1),
            };
            self.turn += 1;
            let read = self.talk.read(room);
            assert!(self.talk.memory() <= MEMORY_MAX, "{} bytes of memory", self.talk.memory());
            match read {
                None => return self.hear(),
                Some(Ok(bytes)) if !bytes.is_empty() => {
                    assert!(self.end.is_none(), "content behind the end");
                    self.got.extend(bytes);
                    assert!(self.sealed.starts_with(&self.got), "content that was not sealed");
                }
                Some(end) => {
                    let end = end.map_or_else(|error| error.to_string(), |_| "said so".to_owned());
                    assert!(self.end.as_ref().is_none_or(|before| *before == end), "another end");
                    self.end = Some(end);
                    return self.hear();
                }
            }
        }
    }

    /// Receives the client's records: their content is the bytes that the client wrote.
    fn hear(&mut self) {
        for (kind, content) in self.talk.heard() {
            if kind == CONTENT {
                self.heard.extend(content);
            }
        }
        assert!(self.written.starts_with(&self.heard), "what the client did not write");
    }

    fn end(mut self) {
        self.read();
        if self.is_sound {
            assert_eq!(self.end, None, "nothing was wrong");
            assert!(self.got == self.sealed, "sound content is read whole");
            self.talk.tell(ALERT, &[1, 0]);
        }
        self.talk.hang_up();
        self.read();
        assert!(self.end.is_some(), "a connection that was closed has an end");
        assert!(!self.is_sound || self.end.as_deref() == Some("said so"), "{:?}", self.end);
    }
}

fuzz_target!(|input: Input| {
    let Input { is_tls13, pieces, rooms, acts } = input;
    let mut talk = Conversation::begin(&PARTIES[usize::from(is_tls13)]);
    // Small pieces of much would be slow.
    talk.pieces(pieces.into_iter().map(|piece| usize::from(piece) * usize::from(piece)).collect());
    let rooms = rooms.into_iter().map(usize::from).collect();
    let game = Game {
        talk,
        is_tls13,
        rooms,
        turn: 0,
        sealed: vec![],
        got: vec![],
        written: vec![],
        heard: vec![],
        is_sound: true,
        is_whole: true,
        silent: 0,
        silent_bytes: 0,
        end: None,
    };
    let game = acts.into_iter().fold(game, |mut game, act| {
        game.play(act);
        game
    });
    game.end();
});
