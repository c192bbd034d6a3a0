//! Requests of an engine of an engines pod, whose cache is one directory among others.

use super::*;

#[test]
fn an_engine_among_others_names_files_of_its_own_directory_alone() {
    isolated(|| {
        at_home(async |home| {
            let files = [home.put("one/file"), home.put("two/file")];
            let mut engine = home.dialled_with(Some(&home.cache.join("one")), true, 0).await;
            home.ask(&mut engine, &Home::open("file", files[0])).await.unwrap();
            for name in ["../two/file", "two/file", "one/file"] {
                home.ask(&mut engine, &Home::open(name, files[1])).await.unwrap_err();
            }
            let why = home.ask(&mut engine, &Home::open("file", files[1])).await.unwrap_err();
            assert!(why.contains("another one"), "{why}");
        });
    });
}
