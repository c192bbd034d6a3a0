//! Requests in the kernel's form: whole, cut short and made up.

use proptest::prelude::*;

use super::*;

/// A request with this body, in the kernel's frame.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(77u64.to_ne_bytes());
    bytes.extend(5u64.to_ne_bytes());
    for field in [1000u32, 1000, 4242, 0] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

/// A body under construction, field by field as `linux/fuse.h` lists them.
#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn u32s(mut self, fields: &[u32]) -> Self {
        fields.iter().for_each(|field| self.0.extend(field.to_ne_bytes()));
        self
    }

    fn u64s(mut self, fields: &[u64]) -> Self {
        fields.iter().for_each(|field| self.0.extend(field.to_ne_bytes()));
        self
    }

    fn name(mut self, name: &OsStr) -> Self {
        self.0.extend(name.as_bytes());
        self.0.push(0);
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// Opcode and body of an operation in the kernel's form; `noise` fills the fields that the decoder skips.
fn encode(operation: &Operation<'_>, noise: u32) -> (u32, Vec<u8>) {
    let (b, wide) = (Body::default(), u64::from(noise));
    let (opcode, body) = match *operation {
        Operation::Lookup { name } => (1, b.name(name)),
        Operation::Forget { count } => (2, b.u64s(&[count])),
        // fuse_getattr_in: flags, dummy, fh.
        Operation::Getattr => (3, b.u32s(&[noise, 0]).u64s(&[wide])),
        Operation::Setattr { mode, uid, gid, size, handle, accessed, modified } => {
            let bits = |wish, set: u32, now: u32| match wish {
                None => 0,
                Some(TimeWish::At(_)) => 1 << set,
                Some(TimeWish::Now) => 1 << set | 1 << now,
            };
            let valid = u32::from(mode.is_some())
                | u32::from(uid.is_some()) << 1
                | u32::from(gid.is_some()) << 2
                | u32::from(size.is_some()) << 3
                | u32::from(handle.is_some()) << 6
                | bits(accessed, 4, 7)
                | bits(modified, 5, 8);
            let at = |wish| match wish {
                Some(TimeWish::At(time)) => match time.duration_since(SystemTime::UNIX_EPOCH) {
                    Ok(since) => (since.as_secs(), since.subsec_nanos()),
                    Err(before) => (before.duration().as_secs().wrapping_neg(), 0),
                },
                _ => (wide, noise),
            };
            let ((atime, atime_ns), (mtime, mtime_ns)) = (at(accessed), at(modified));
            // fuse_setattr_in: valid, padding, fh, size, lock_owner, three times, their nanoseconds, mode, -, uid, gid, -.
            let body = b.u32s(&[valid, 0]).u64s(&[
                handle.unwrap_or(wide),
                size.unwrap_or(wide),
                wide,
                atime,
                mtime,
                wide,
            ]);
            let [mode, uid, gid] = [mode, uid, gid].map(|field| field.unwrap_or(noise));
            (4, body.u32s(&[atime_ns, mtime_ns, noise, mode, noise, uid, gid, noise]))
        }
        Operation::Symlink { name, target } => (6, b.name(name).name(target)),
        Operation::Mknod { mode, name } => (8, b.u32s(&[mode, noise, noise, 0]).name(name)),
        Operation::Mkdir { mode, name } => (9, b.u32s(&[mode, noise]).name(name)),
        Operation::Unlink { name } => (10, b.name(name)),
        Operation::Rmdir { name } => (11, b.name(name)),
        Operation::Rename { name, new_parent, new_name, flags: 0 } => {
            (12, b.u64s(&[new_parent]).name(name).name(new_name))
        }
        Operation::Rename { name, new_parent, new_name, flags } => {
            (45, b.u64s(&[new_parent]).u32s(&[flags, 0]).name(name).name(new_name))
        }
        Operation::Readlink => (5, b),
        Operation::Link { name } => (13, b.u64s(&[wide]).name(name)),
        Operation::Setxattr { name, value, flags } => {
            (21, b.u32s(&[value.len() as u32, flags]).name(name).bytes(value))
        }
        Operation::Getxattr { name, size } => (22, b.u32s(&[size, 0]).name(name)),
        Operation::Listxattr { size } => (23, b.u32s(&[size, 0])),
        Operation::Removexattr { name } => (24, b.name(name)),
        Operation::Fsyncdir { handle } => (30, b.u64s(&[handle]).u32s(&[noise, 0])),
        // fuse_lseek_in: fh, offset, whence, padding.
        Operation::Lseek { handle, offset, whence } => (46, b.u64s(&[handle, offset]).u32s(&[whence, 0])),
        Operation::Open { flags } => (14, b.u32s(&[flags as u32, noise])),
        Operation::Read { handle, offset, size } => (15, read_in(handle, offset, size, noise)),
        Operation::Write { handle, offset, data, mapped, flags } => {
            let write_flags = noise & !1 | u32::from(mapped);
            // fuse_write_in: fh, offset, size, write_flags, lock_owner, flags, padding.
            let body = b.u64s(&[handle, offset]).u32s(&[data.len() as u32, write_flags]).u64s(&[wide]);
            (16, body.u32s(&[flags as u32, 0]).bytes(data))
        }
        Operation::Statfs => (17, b),
        Operation::Release { handle } => (18, b.u64s(&[handle]).u32s(&[noise, noise]).u64s(&[wide])),
        Operation::Fsync { handle } => (20, b.u64s(&[handle]).u32s(&[noise, 0])),
        Operation::Flush { handle } => (25, b.u64s(&[handle]).u32s(&[noise, 0]).u64s(&[wide])),
        Operation::Init { major, minor, max_readahead, flags } => {
            let (lower, upper) = (flags as u32, (flags >> 32) as u32);
            let body = b.u32s(&[major, minor, max_readahead, lower]);
            (26, if minor < 36 { body } else { body.u32s(&[upper]).u32s(&[0; 11]) })
        }
        Operation::Opendir => (27, b.u32s(&[noise, noise])),
        Operation::Readdir { handle, offset, size } => (28, read_in(handle, offset, size, noise)),
        Operation::Releasedir { handle } => (29, b.u64s(&[handle]).u32s(&[noise, noise]).u64s(&[wide])),
        Operation::Create { flags, mode, name } => {
            (35, b.u32s(&[flags as u32, mode, noise, noise]).name(name))
        }
        Operation::Interrupt { unique } => (36, b.u64s(&[unique])),
        Operation::Destroy => (38, b),
        Operation::BatchForget { ref nodes } => {
            let body = b.u32s(&[nodes.len() as u32, 0]);
            (42, nodes.iter().fold(body, |body, (node, count)| body.u64s(&[*node, *count])))
        }
        // fuse_fallocate_in: fh, offset, length, mode, padding.
        Operation::Fallocate { handle, offset, len, mode } => {
            (43, b.u64s(&[handle, offset, len]).u32s(&[mode, 0]))
        }
        Operation::Readdirplus { handle, offset, size } => (44, read_in(handle, offset, size, noise)),
        Operation::Other { opcode } => (opcode, b.u64s(&[wide])),
    };
    (opcode, body.0)
}

/// `struct fuse_read_in` (and `fuse_write_in`): handle, offset, size, flags, lock_owner, flags, padding.
fn read_in(handle: u64, offset: u64, size: u32, noise: u32) -> Body {
    let body = Body::default().u64s(&[handle, offset]).u32s(&[size, noise]);
    body.u64s(&[u64::from(noise)]).u32s(&[noise, 0])
}

/// The sources of an operation's fields.
#[derive(Clone, Debug)]
struct Parts {
    a: u64,
    b: u64,
    c: u32,
    yes: bool,
    name: Vec<u8>,
    data: Vec<u8>,
    nodes: Vec<(u64, u64)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let name = proptest::collection::vec(1u8.., 0..256);
    let data = proptest::collection::vec(any::<u8>(), 0..5000);
    let nodes = proptest::collection::vec(any::<(u64, u64)>(), 0..50);
    (any::<(u64, u64, u32, bool)>(), name, data, nodes)
        .prop_map(|((a, b, c, yes), name, data, nodes)| Parts { a, b, c, yes, name, data, nodes })
}

/// One operation of every kind.
fn every(parts: &Parts) -> Vec<Operation<'_>> {
    let Parts { a, b, c, yes, ref name, ref data, ref nodes } = *parts;
    let (name, other) = (OsStr::from_bytes(name), OsStr::from_bytes(&name[..name.len() / 2]));
    let (handle, offset, size) = (a, b, c);
    let minor = if yes { 31 } else { 45 };
    let ext = 1 << 30;
    // Before 7.36 there is no upper half, and no bit that says so.
    let flags = if yes { u64::from(c) & !ext } else { b | ext };
    vec![
        Operation::Init { major: 7, minor, max_readahead: c, flags },
        Operation::Destroy,
        Operation::Lookup { name },
        Operation::Forget { count: a },
        Operation::BatchForget { nodes: nodes.clone() },
        Operation::Getattr,
        Operation::Setattr {
            mode: yes.then_some(c),
            uid: (a % 2 == 0).then_some(b as u32),
            gid: None,
            size: (!yes).then_some(a),
            handle: yes.then_some(b),
            accessed: (b % 2 == 0).then_some(TimeWish::Now),
            modified: (b % 3 != 0)
                .then(|| TimeWish::At(SystemTime::UNIX_EPOCH + Duration::new(c.into(), c % 1000))),
        },
        Operation::Setattr {
            mode: None,
            uid: None,
            gid: (!yes).then_some(c),
            size: None,
            handle: None,
            accessed: Some(TimeWish::At(SystemTime::UNIX_EPOCH - Duration::from_secs(c.into()))),
            modified: None,
        },
        Operation::Mknod { mode: c, name },
        Operation::Mkdir { mode: c, name },
        Operation::Unlink { name },
        Operation::Rmdir { name },
        Operation::Rename { name, new_parent: a, new_name: other, flags: c },
        Operation::Rename { name, new_parent: a, new_name: other, flags: 0 },
        Operation::Symlink { name, target: other },
        Operation::Readlink,
        Operation::Link { name },
        Operation::Setxattr { name, value: data, flags: c },
        Operation::Getxattr { name, size: c },
        Operation::Listxattr { size: c },
        Operation::Removexattr { name },
        Operation::Fsyncdir { handle },
        Operation::Lseek { handle, offset, whence: c },
        Operation::Open { flags: c as i32 },
        Operation::Create { flags: c as i32, mode: b as u32, name },
        Operation::Read { handle, offset, size },
        Operation::Write { handle, offset, data, mapped: yes, flags: c as i32 },
        Operation::Flush { handle },
        Operation::Fsync { handle },
        Operation::Release { handle },
        Operation::Opendir,
        Operation::Readdir { handle, offset, size },
        Operation::Readdirplus { handle, offset, size },
        Operation::Releasedir { handle },
        Operation::Statfs,
        Operation::Fallocate { handle, offset, len: c.into(), mode: size },
        Operation::Interrupt { unique: a },
        // COPY_FILE_RANGE and what is still to come.
        Operation::Other { opcode: 47 + c % 1000 },
    ]
}

#[test]
fn a_write_carries_exactly_its_data() {
    let write = Operation::Write { handle: 9, offset: 4096, data: b"abc", mapped: false, flags: 1 };
    let (opcode, body) = encode(&write, 0);
    let bytes = request(opcode, &body);
    let decoded = decode(&bytes).unwrap();
    assert_eq!((decoded.unique, decoded.node, decoded.uid, decoded.pid), (77, 5, 1000, 4242));
    assert_eq!(decoded.operation, write);
    let short = request(16, &body[..body.len() - 1]);
    assert_eq!(decode(&short), Err(DecodeError::Body { unique: 77, opcode: 16 }));
}

#[test]
fn a_name_ends_at_its_nul_and_must_have_one() {
    let bytes = request(1, b"file\0");
    assert_eq!(decode(&bytes).unwrap().operation, Operation::Lookup { name: OsStr::new("file") });
    assert!(decode(&request(1, b"file")).is_err());
}

#[test]
fn a_batch_that_claims_more_than_it_holds_is_refused() {
    let body = Body::default().u32s(&[u32::MAX, 0]).u64s(&[0, 0]);
    assert!(decode(&request(42, &body.0)).is_err());
}

proptest! {
    #[test]
    fn every_request_is_decoded_to_what_the_kernel_encoded(parts in parts(), noise: u32) {
        for operation in every(&parts) {
            let (opcode, body) = encode(&operation, noise);
            let bytes = request(opcode, &body);
            let decoded = decode(&bytes);
            let expected = Request { unique: 77, node: 5, uid: 1000, gid: 1000, pid: 4242, operation };
            prop_assert_eq!(decoded, Ok(expected));
        }
    }

    #[test]
    fn a_request_in_parts_is_the_one_that_comes_whole(parts in parts(), noise: u32) {
        for operation in every(&parts) {
            // Bytes of the first argument; names, data and all other arguments stand apart.
            let first = match operation {
                Operation::Lookup { .. } | Operation::Unlink { .. } | Operation::Rmdir { .. } => Some(0),
                Operation::Symlink { .. } | Operation::Removexattr { .. } => Some(0),
                Operation::Rename { flags: 0, .. } | Operation::Link { .. } => Some(8),
                Operation::Mkdir { .. } | Operation::Getxattr { .. } | Operation::Setxattr { .. } => Some(8),
                Operation::Mknod { .. } | Operation::Create { .. } | Operation::Rename { .. } => Some(16),
                Operation::Write { .. } => Some(40),
                // Never comes in parts.
                Operation::BatchForget { .. } => continue,
                _ => None,
            };
            let (opcode, body) = encode(&operation, noise);
            let whole = request(opcode, &body);
            let (first, rest) = body.split_at(first.unwrap_or(body.len()));
            // Behind the first argument stands what an earlier request left there.
            let mut place = [noise as u8; 128];
            place[..first.len()].copy_from_slice(first);
            let header = &whole[..HEADER_LEN];
            prop_assert_eq!(decode_parts(header, &place, rest), decode(&whole));
            let mut longer = rest.to_vec();
            longer.resize(body.len() + 1, 1);
            prop_assert!(decode_parts(header, &place, &longer).is_err(), "more than its header says");
            prop_assert!(decode_parts(header, &place[..first.len().saturating_sub(1)], rest).is_err() || first.is_empty());
        }
    }

    #[test]
    fn a_request_that_is_cut_short_is_an_error_or_a_request(parts in parts(), at: proptest::sample::Index) {
        for operation in every(&parts) {
            let (opcode, body) = encode(&operation, 0);
            let whole = request(opcode, &body);
            // The form in which it would arrive: its header still claims all of it.
            let cut = &whole[..at.index(whole.len())];
            prop_assert!(decode(cut).is_err(), "{operation:?} cut to {} of {} bytes", cut.len(), whole.len());
            // And with a header that agrees. A request with a name or data is not complete without its end.
            let cut = request(opcode, &body[..at.index(body.len() + 1)]);
            let carries = matches!(
                operation,
                Operation::Lookup { .. } | Operation::Unlink { .. } | Operation::Rmdir { .. }
                    | Operation::Mkdir { .. } | Operation::Mknod { .. } | Operation::Create { .. }
                    | Operation::Rename { .. } | Operation::Symlink { .. } | Operation::Link { .. }
                    | Operation::Setxattr { .. } | Operation::Getxattr { .. } | Operation::Removexattr { .. }
                    | Operation::Write { .. } | Operation::BatchForget { .. }
            );
            prop_assert!(decode(&cut).is_err() || !carries || cut.len() == whole.len(), "{operation:?}: {cut:?}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), opcode in 0u32..60) {
        let _ = decode(&bytes);
        let framed = request(opcode, &bytes);
        let _ = decode(&framed);
        let (first, rest) = bytes.split_at(bytes.len().min(128));
        let _ = decode_parts(&framed[..HEADER_LEN], first, rest);
    }
}
