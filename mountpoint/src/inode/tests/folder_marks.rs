//! Directories that an empty object beside them marks, as Hadoop and EMR write them.

use super::*;

/// Keys with their contents: marks, and objects that only resemble marks.
const KEYS: [(&str, &str); 13] = [
    ("._$folder$", ""),
    ("_$folder$", ""),
    ("a/f", "1"),
    ("a_$folder$", ""),
    ("b_$folder$", ""),
    ("c_$folder$", "bytes"),
    ("d", "1"),
    ("d_$folder$", ""),
    ("e/_$folder$", ""),
    ("g-", "1"),
    ("g0", "1"),
    ("g_$folder$", ""),
    ("g_$folder$/h", "1"),
];

fn marked(config: Config) -> Bench {
    let bench = Bench::with(config, &[]);
    for (key, bytes) in KEYS {
        bench.client.insert(key, bytes);
    }
    bench
}

fn marking() -> Config {
    Config { folder_marks: true, ..Config::default() }
}

async fn shown(bench: &Bench, directory: InodeNo) -> Vec<(String, Kind)> {
    let mut shown: Vec<_> =
        bench.list(directory).await.iter().map(|e| (e.name().to_owned(), e.stat.kind)).collect();
    shown.sort_by(|a, b| a.0.cmp(&b.0));
    shown
}

#[tokio::test]
async fn a_folder_mark_is_a_directory_and_what_only_looks_like_one_a_file() {
    use Kind::{Directory, File};
    let bench = marked(marking());
    let expected = [
        ("._$folder$", File),
        ("_$folder$", File),
        ("a", Directory),
        ("b", Directory),
        ("c_$folder$", File),
        ("d", File),
        ("e", Directory),
        ("g", Directory),
        ("g-", File),
        ("g0", File),
        ("g_$folder$", Directory),
    ];
    let expected = expected.map(|(name, kind)| (name.to_owned(), kind));
    assert_eq!(shown(&bench, ROOT).await, expected);
    for (name, kind) in expected {
        bench.clock.advance(Duration::from_secs(2));
        assert_eq!(bench.lookup(ROOT, &name).await.unwrap().stat.kind, kind, "{name}");
    }
    for hidden in ["a_$folder$", "b_$folder$", "d_$folder$"] {
        assert_error!(bench.lookup(ROOT, hidden).await, ErrorKind::NotFound);
    }
    let (b, e) = (bench.walk("b").await.unwrap().ino, bench.walk("e").await.unwrap().ino);
    assert_eq!(shown(&bench, b).await, []);
    assert_eq!(shown(&bench, e).await, [("_$folder$".to_owned(), File)]);
}

#[tokio::test]
async fn pages_of_any_length_show_the_same_directories_of_folder_marks() {
    let whole = shown(&marked(marking()), ROOT).await;
    for list_page in 1..14 {
        let bench = marked(Config { list_page, ..marking() });
        assert_eq!(shown(&bench, ROOT).await, whole, "{list_page} keys a page");
    }
}

#[tokio::test]
async fn without_the_flag_folder_marks_are_files_and_no_request_is_for_them() {
    let bench = marked(Config::default());
    let names = bench.names(ROOT).await;
    assert!(names.contains(&"b_$folder$".to_owned()) && !names.contains(&"b".to_owned()), "{names:?}");
    let (missing, cost) = bench.cost(bench.lookup(ROOT, "b")).await;
    assert_error!(missing, ErrorKind::NotFound);
    assert_eq!(cost, 2);
    let bench = marked(marking());
    let (found, cost) = bench.cost(bench.lookup(ROOT, "b")).await;
    assert_eq!((found.unwrap().stat.kind, cost), (Kind::Directory, 3));
    let (found, cost) = bench.cost(bench.lookup(ROOT, "d")).await;
    assert_eq!((found.unwrap().stat.kind, cost), (Kind::File, 2), "a file costs no more");
}

#[tokio::test]
async fn rmdir_removes_the_folder_mark_of_a_directory_with_its_marker() {
    let bench = marked(marking());
    bench.client.insert("b/", "");
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("b"), false).await, ErrorKind::NotPermitted(_));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("a"), true).await, ErrorKind::NotPermitted(_));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("d"), true).await, ErrorKind::NotADirectory);
    // The mark is deleted first.
    bench.client.inject(FaultPlan::on(Op::DeleteObject).nth(2).fail(s3::ErrorKind::Denied));
    assert_error!(bench.table.rmdir(ROOT, OsStr::new("b"), true).await, ErrorKind::Remote(_));
    bench.table.rmdir(ROOT, OsStr::new("b"), true).await.unwrap();
    // `rm -r` removes the last file, then the directory.
    let a = bench.walk("a").await.unwrap().ino;
    bench.table.unlink(a, OsStr::new("f"), true).await.unwrap();
    bench.table.rmdir(ROOT, OsStr::new("a"), true).await.unwrap();
    for gone in ["a", "b"] {
        bench.clock.advance(Duration::from_secs(2));
        assert_error!(bench.lookup(ROOT, gone).await, ErrorKind::NotFound);
    }
    let left = bench.client.keys();
    assert!(!left.iter().any(|key| key.starts_with(['a', 'b'])), "{left:?}");
    assert_eq!(left.len(), KEYS.len() - 3);
}
