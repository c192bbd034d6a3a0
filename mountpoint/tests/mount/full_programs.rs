//! Programs that change files in place, on a mount with `--mode full`.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::full::FullMount;
use crate::common::{Pattern, Store, need_tool, run, until};

/// A program with an environment of its own.
fn tool(name: &str, home: &Path) -> Command {
    let mut command = Command::new(name);
    command.env("HOME", home).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_TERMINAL_PROMPT", "0");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Somebody").env(format!("GIT_{who}_EMAIL"), "some@body");
    }
    command
}

#[test]
fn git_makes_commits_clones_packs_and_checks_a_repository() {
    git_works(&[]);
}

#[test]
fn git_works_where_close_waits_for_nothing() {
    git_works(&["--commit", "disk"]);
}

fn git_works(options: &[&str]) {
    if !need_tool("git") {
        return;
    }
    let store = Store::new();
    let Some(full) = FullMount::of(&store, options) else { return };
    let home = tempfile::tempdir().unwrap();
    let git = |dir: &Path, arguments: &[&str]| {
        let output = run(tool("git", home.path()).arg("-C").arg(dir).args(arguments));
        String::from_utf8(output.stdout).unwrap()
    };
    let repository = full.path("repository");
    git(full.mount.dir(), &["init", "-q", "-b", "main", "repository"]);
    for commit in 0..3 {
        for file in 0..10 {
            let folder = repository.join(format!("d{}", file % 3));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("file{file}")), format!("{commit} {file}\n").repeat(50)).unwrap();
        }
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "-q", "-m", &format!("commit {commit}")]);
    }
    assert_eq!(git(&repository, &["status", "--porcelain"]), "");
    git(&repository, &["checkout", "-q", "-b", "other", "HEAD~1"]);
    git(&repository, &["checkout", "-q", "main"]);
    git(&repository, &["gc", "-q"]);
    git(&repository, &["fsck", "--strict"]);
    git(full.mount.dir(), &["clone", "-q", "repository", "clone"]);
    git(&full.path("clone"), &["fsck", "--strict"]);
    assert_eq!(git(&full.path("clone"), &["log", "--oneline"]).lines().count(), 3);
    run(Command::new("diff").args(["-r", "-x", ".git"]).arg(&repository).arg(full.path("clone")));
    // Another mount has the same repository: also its directories that are empty once the names are packed.
    let head = git(&repository, &["rev-parse", "main"]);
    drop(full);
    let Some(again) = FullMount::of(&store, &[]) else { return };
    let repository = again.path("repository");
    git(&repository, &["fsck", "--strict"]);
    assert_eq!(git(&repository, &["rev-parse", "main"]), head);
    assert_eq!(git(&repository, &["status", "--porcelain", "--untracked-files=no"]), "");
}

#[test]
fn sqlite_commits_in_every_journal_mode() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    for mode in ["delete", "truncate", "persist", "wal"] {
        let name = format!("{mode}.db");
        let script = "
import sqlite3
base = sqlite3.connect(sys.argv[1], isolation_level=None)
print(base.execute('pragma journal_mode=' + sys.argv[2]).fetchone()[0])
base.execute('create table t (n integer primary key, text text)')
for n in range(20):
    base.execute('begin')
    base.executemany('insert into t (text) values (?)', [('x' * 100,)] * 50)
    base.execute('update t set text = ? where n % 7 = 0', (str(n),))
    base.execute('commit')
other = sqlite3.connect(sys.argv[1])
print(other.execute('select count(*), sum(length(text)) from t').fetchone())
other.close()
base.close()
again = sqlite3.connect(sys.argv[1])
print(again.execute('pragma integrity_check').fetchone()[0], again.execute('select count(*) from t').fetchone()[0])
";
        let said = crate::common::python(script, &full.path(&name), &[mode]);
        let lines: Vec<_> = said.lines().collect();
        assert!(lines[0] == mode && lines[2] == "ok 1000", "{mode}: {said}");
        // The bucket has the whole database.
        let copy = full.mount.scratch(&name);
        until("the last close is stored", || {
            fs::write(&copy, store.get(&name).unwrap_or_default()).unwrap();
            let check = "import sqlite3\nbase = sqlite3.connect(sys.argv[1])\n\
                try: print(base.execute('pragma integrity_check').fetchone()[0], base.execute('select count(*) from t').fetchone()[0])\n\
                except sqlite3.DatabaseError as error: print(error)";
            crate::common::python(check, &copy, &[]) == "ok 1000\n"
        });
    }
}

#[test]
fn shells_sed_and_vim_edit_files_in_place() {
    let store = Store::new();
    store.plant("file", b"one\ntwo\n");
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let home = full.mount.scratch("home");
    fs::create_dir(&home).unwrap();
    let file = full.path("file");
    run(Command::new("sh").args(["-c", "echo three >> \"$0\""]).arg(&file));
    run(Command::new("sed").args(["-i", "s/two/2/"]).arg(&file));
    assert_eq!(fs::read(&file).unwrap(), b"one\n2\nthree\n");
    until("it is stored", || store.get("file").unwrap() == b"one\n2\nthree\n");
    run(Command::new("sh")
        .args(["-c", "exec 3<>\"$0\"; printf O >&3; (cat <&3 >/dev/null; echo four >&3)"])
        .arg(&file));
    assert_eq!(fs::read(&file).unwrap(), b"One\n2\nthree\nfour\n");
    if need_tool("vim") {
        let mut vim = tool("vim", &home);
        run(vim.args(["-u", "NONE", "-es", "-c", "%s/three/3/", "-c", "wq"]).arg(&file));
        assert_eq!(fs::read(&file).unwrap(), b"One\n2\n3\nfour\n");
    }
    let expected = fs::read(&file).unwrap();
    until("it is stored, and nothing else", || {
        store.keys() == ["file"] && store.get("file").unwrap() == expected
    });
}

#[test]
fn rsync_patches_a_file_in_place() {
    if !need_tool("rsync") {
        return;
    }
    let store = Store::new();
    const LEN: usize = 12_000_000;
    store.plant("file", &Pattern(1).bytes(0, LEN));
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let local = full.mount.scratch("file");
    let mut bytes = Pattern(1).bytes(0, LEN);
    bytes[6_000_000..6_000_100].fill(7);
    bytes.extend(b"behind");
    fs::write(&local, &bytes).unwrap();
    run(Command::new("rsync")
        .args(["--inplace", "--no-whole-file", "--times"])
        .arg(&local)
        .arg(full.path("file")));
    assert!(fs::read(full.path("file")).unwrap() == bytes);
    until("it is stored", || store.get("file").unwrap() == bytes);
}

#[test]
fn pip_installs_a_package() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let home = full.mount.scratch("home");
    fs::create_dir(&home).unwrap();
    let wheel = full.mount.scratch("tried-1.0-py3-none-any.whl");
    let script = "
import zipfile
about = 'tried-1.0.dist-info/'
files = {'tried/__init__.py': 'answer = 42\\n', about + 'METADATA': 'Metadata-Version: 2.1\\nName: tried\\nVersion: 1.0\\n',
    about + 'WHEEL': 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'}
files.update({f'tried/m{n}.py': f'n = {n}\\n' for n in range(20)})
files[about + 'RECORD'] = ''.join(name + ',,\\n' for name in [*files, about + 'RECORD'])
with zipfile.ZipFile(sys.argv[1], 'w') as archive:
    for name, text in files.items(): archive.writestr(name, text)
";
    crate::common::python(script, &wheel, &[]);
    let site = full.path("site");
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--root-user-action=ignore",
        "--target",
    ]);
    run(pip.arg(&site).arg(&wheel).env("PIP_DISABLE_PIP_VERSION_CHECK", "1"));
    let import = "import tried, tried.m19; print(tried.answer, tried.m19.n)";
    let output = run(Command::new("python3").env("PYTHONPATH", &site).args(["-c", import]));
    assert_eq!(output.stdout, b"42 19\n");
    assert_eq!(store.get("site/tried/__init__.py").unwrap(), b"answer = 42\n");
}

#[test]
fn npm_installs_a_package() {
    if !need_tool("npm") {
        return;
    }
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let (home, package) = (full.mount.scratch("home"), full.mount.scratch("tried"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&package).unwrap();
    fs::write(package.join("package.json"), r#"{"name": "tried", "version": "1.0.0", "main": "index.js"}"#)
        .unwrap();
    fs::write(package.join("index.js"), "module.exports = 42\n").unwrap();
    let pack = |command: &mut Command| drop(run(command.env("npm_config_update_notifier", "false")));
    pack(
        tool("npm", &home).args(["pack", "--silent", "--pack-destination"]).arg(&home).current_dir(&package),
    );
    let project = full.path("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("package.json"), r#"{"name": "project", "version": "1.0.0"}"#).unwrap();
    let mut install = tool("npm", &home);
    install.args(["install", "--offline", "--no-audit", "--no-fund"]).arg(home.join("tried-1.0.0.tgz"));
    pack(install.current_dir(&project));
    let output = run(tool("node", &home).args(["-e", "console.log(require('tried'))"]).current_dir(&project));
    assert_eq!(output.stdout, b"42\n");
    assert!(store.get("project/node_modules/tried/index.js").is_some());
}

#[test]
fn cargo_builds_and_runs_a_program() {
    let store = Store::new();
    let Some(full) = FullMount::of(&store, &[]) else { return };
    let project = full.path("project");
    fs::create_dir_all(project.join("src")).unwrap();
    let manifest = "[package]\nname = \"tried\"\nversion = \"1.0.0\"\nedition = \"2021\"\nbuild = \"build.rs\"\n[workspace]\n";
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    fs::write(project.join("build.rs"), "fn main() { println!(\"cargo::rustc-env=ANSWER=42\"); }\n").unwrap();
    fs::write(project.join("src/main.rs"), "fn main() { println!(env!(\"ANSWER\")); }\n").unwrap();
    let cargo = |argument: &str| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([argument, "--quiet", "--offline"]).current_dir(&project).env_remove("CARGO_TARGET_DIR");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_"))
        {
            if name != "CARGO_HOME" {
                cargo.env_remove(name);
            }
        }
        run(&mut cargo).stdout
    };
    cargo("build");
    assert_eq!(cargo("run"), b"42\n");
    until("the program is stored", || store.get("project/target/debug/tried").is_some());
}
