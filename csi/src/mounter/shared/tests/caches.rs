//! Mounts with a cache on the disk of the engines pod: volumes without room, disks that hang, and notes that are lost.

use std::os::fd::AsFd as _;

use super::super::caches::name_of;
use super::*;

/// Goal: a cache is warm when its volume comes again, and volumes without room are mounted and explained.
#[test]
fn a_cache_outlives_its_source_until_another_volume_needs_the_room() {
    isolated(|| {
        on_node(LONG, |mut home| async move {
            let [one, two] = ["pv-1", "pv-2"].map(|volume| home.cached(volume, 60));
            let disk = home.kubelet.join("disk");
            let [of_one, of_two] = [&one, &two].map(|request| disk.join(name_of(request)));
            home.mounter.mount(one).await.unwrap();
            let name = of_one.file_name().unwrap().to_str().unwrap();
            let wanted = [format!("--cache=/local-cache/{name}"), "--max-cache-size=60".to_owned()];
            assert_eq!(home.args("pv-1"), wanted);
            std::fs::write(of_one.join("block"), "bytes").unwrap();

            home.mounter.mount(two.clone()).await.unwrap();
            assert_eq!(home.args("pv-2"), [""; 0], "it reads from the store");
            let notice = home.told(Reason::CacheLeftOut).await;
            assert!(notice.note.contains("pv-2") && notice.note.contains("60 of 100 MiB"), "{}", notice.note);

            home.end("pv-1").await;
            assert!(of_one.join("block").exists(), "it waits for its volume");
            home.end("pv-2").await;
            home.mounter.mount(two).await.unwrap();
            assert_eq!(home.args("pv-2").len(), 2);
            assert!(!of_one.exists() && of_two.exists());
        })
    });
}

#[test]
fn a_disk_that_hangs_costs_volumes_their_caches_and_no_mount() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let disk = home.kubelet.join("disk");
            // Nobody serves this mount: each call waits for as long as the device is open.
            let Some(device) = fuse() else { return };
            sys::mount_fuse(device.as_fd(), &disk, false).unwrap();
            let (told, notices) = mpsc::channel(16);
            let short = Config {
                cache_within: Duration::from_millis(200),
                ..config(&home.kubelet, LONG, Some(told))
            };
            let mounter = SharedMounter::new(&home.server.client(), short).unwrap();
            let mut home = Home { mounter, notices, ..home };
            for (volume, words) in [("pv-1", "did not make room"), ("pv-2", "the cache of another volume")] {
                home.mounter.mount(home.cached(volume, 10)).await.unwrap();
                assert_eq!(home.args(volume), [""; 0], "it reads from the store");
                let note = home.told(Reason::CacheLeftOut).await.note;
                assert!(note.contains(volume) && note.contains(words), "{note}");
            }
            drop(device);
            assert!(sys::unmount(&disk, sys::Busy::Detach).unwrap());
            // The disk answers again. A slow machine may need more than one attempt.
            for _ in 0..100 {
                home.end("pv-1").await;
                home.mounter.mount(home.cached("pv-1", 10)).await.unwrap();
                if !home.args("pv-1").is_empty() {
                    return;
                }
            }
            panic!("its volumes stay without a cache");
        })
    });
}

/// Goal: a crash of the node that empties notes costs no volume its cache.
#[test]
fn two_unreadable_notes_of_caches_in_use_block_neither_volume() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let caches = ["pv-1", "pv-2"].map(|volume| home.cached(volume, 30));
            for request in &caches {
                home.mounter.mount(request.clone()).await.unwrap();
            }
            for request in &caches {
                std::fs::write(home.note_of_cache(request), "").unwrap();
            }
            for volume in ["pv-1", "pv-2"] {
                home.engine_dies(volume).await;
                assert_eq!(home.args(volume).len(), 2, "{volume} has its cache");
            }
        })
    });
}

/// Goal: a disk that answers too late costs no other volume its cache.
#[test]
fn room_that_was_made_too_late_is_free_for_another_volume() {
    isolated(|| {
        on_node(LONG, |home| async move {
            let (one, two) = (home.cached("pv-1", 90), home.cached("pv-2", 90));
            let [of_one, of_other] =
                [&one, &home.cached("pv-3", 1)].map(|request| home.note_of_cache(request));
            // The note of an unused cache that can be read only once the test writes it.
            std::fs::create_dir_all(of_other.parent().unwrap()).unwrap();
            std::fs::create_dir(home.kubelet.join("disk").join(of_other.file_name().unwrap())).unwrap();
            let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
            rustix::fs::mknodat(rustix::fs::CWD, &of_other, fifo, mode, 0).unwrap();
            let (told, notices) = mpsc::channel(16);
            let within = Duration::from_millis(200);
            let short = Config { cache_within: within, ..config(&home.kubelet, LONG, Some(told)) };
            let mounter = SharedMounter::new(&home.server.client(), short).unwrap();
            let mut home = Home { mounter, notices, ..home };
            home.mounter.mount(one).await.unwrap();
            home.told(Reason::CacheLeftOut).await;
            assert_eq!(home.args("pv-1"), [""; 0], "it reads from the store");
            let write = move || {
                // The disk waits for this, so that it opens at once.
                let mut note = std::fs::OpenOptions::new().write(true).open(&of_other).unwrap();
                std::fs::remove_file(&of_other).unwrap();
                std::io::Write::write_all(&mut note, br#"{"mib":1,"source":"sh-0"}"#).unwrap();
            };
            tokio::task::spawn_blocking(write).await.unwrap();
            drop(home.mounter.node.caches.turn().await);
            assert!(of_one.exists(), "its room was made too late");

            let patient = config(&home.kubelet, LONG, None);
            home.mounter = SharedMounter::new(&home.server.client(), patient).unwrap();
            home.mounter.mount(two).await.unwrap();
            assert_eq!(home.args("pv-2").len(), 2, "it has its cache");
            assert!(!of_one.exists());
        })
    });
}
