//! The mark beside a directory moves with the directory, and no directory loses its mark.

use super::*;
use crate::moves::note::tests as notes;

const MARK: &str = "from_$folder$";
const NEW: &str = "to_$folder$";

fn marking(client: &MemoryClient, notes: Option<NotesConfig>) -> Mover {
    Mover::new(client.arc(), Config { folder_marks: true, at_once: 1, notes, ..Config::default() })
}

async fn renamed(mover: &Mover) -> Result<Vec<ObjectKey>> {
    let copied = mover.copy_directory(&key("from/"), &key("to/")).await?;
    mover.delete_directory(copied).await
}

#[tokio::test]
async fn the_mark_beside_a_directory_gets_the_new_name_with_it() {
    for (objects, is_there) in [(0, false), (0, true), (3, false), (3, true)] {
        let client = bucket();
        fill_with(&client, objects);
        client.insert(MARK, "");
        if is_there {
            client.insert(NEW, "");
        }
        assert_eq!(renamed(&marking(&client, None)).await.unwrap(), []);
        let mut expected: Vec<_> = (0..objects).map(|number| format!("to/{number}")).collect();
        expected.push(NEW.to_owned());
        assert_eq!(client.keys(), expected);
    }
    // An object with bytes marks nothing, and stays.
    let client = bucket();
    client.insert("from/a", "1");
    client.insert(MARK, "bytes");
    renamed(&marking(&client, None)).await.unwrap();
    assert_eq!(client.keys(), [MARK, "to/a"]);
    // One in the place of the new mark is not replaced.
    let client = bucket();
    client.insert("from/a", "1");
    client.insert(MARK, "");
    client.insert(NEW, "bytes");
    assert!(matches!(renamed(&marking(&client, None)).await, Err(Error::Taken)));
    assert_eq!(client.keys(), ["from/a", MARK, NEW]);
}

#[tokio::test]
async fn without_the_flag_a_rename_does_not_look_for_marks() {
    let client = bucket();
    client.insert("from/a", "1");
    client.insert(MARK, "");
    client.reset_log();
    renamed(&Mover::new(client.arc(), Config::default())).await.unwrap();
    assert_eq!((client.calls(Op::HeadObject), client.keys()), (0, vec![MARK.to_owned(), "to/a".to_owned()]));
}

#[tokio::test]
async fn whichever_request_fails_a_marked_directory_has_its_mark() {
    let mut failed = 0;
    for (op, objects) in
        [Op::HeadObject, Op::CopyObject, Op::DeleteObject].iter().flat_map(|op| [(*op, 0), (*op, 1)])
    {
        for lost in [false, true] {
            for nth in 1.. {
                let client = bucket();
                client.insert(MARK, "");
                fill_with(&client, objects);
                let plan = FaultPlan::on(op).nth(nth).fail(ErrorKind::Denied);
                client.inject(if lost { plan.answer_lost() } else { plan });
                let outcome = renamed(&marking(&client, None)).await;
                let what = format!("{op:?} {nth} lost: {lost} of {objects}");
                let keys = client.keys();
                let has = |key: &str| keys.iter().any(|there| there == key);
                match &outcome {
                    Ok(_) => assert!(has(NEW) && !has(MARK), "{what}: {keys:?}"),
                    Err(Error::Partial { .. }) => assert!(has(NEW), "{what}: {keys:?}"),
                    Err(_) => assert!(has(MARK), "{what}: {keys:?}"),
                }
                failed += usize::from(outcome.is_err());
                if client.calls(op) < nth {
                    break;
                }
            }
        }
    }
    assert!(failed > 8, "only {failed} failed: the faults did not strike");
}

#[tokio::test]
async fn the_next_mount_takes_the_mark_along_that_a_killed_rename_left() {
    for nth in 1..=2 {
        let dir = tempfile::tempdir().unwrap();
        let client = bucket();
        client.insert("from/a", "1");
        client.insert(MARK, "");
        let gate = client.hold(FaultPlan::on(Op::DeleteObject).nth(nth));
        let mover = marking(&client, Some(notes::config(dir.path())));
        let renames = tokio::spawn(async move { renamed(&mover).await });
        gate.arrived(1).await;
        renames.abort();
        let _ = renames.await;
        gate.release();
        notes::kill_owners(dir.path());
        marking(&client, Some(notes::config(dir.path()))).go_on().await;
        assert_eq!(client.keys(), ["to/a", NEW], "killed at delete {nth}");
    }
}
