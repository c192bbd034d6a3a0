//! Targets with layers of dead engines.

use std::os::fd::AsFd as _;

use super::*;

/// Kills the engines of a target until systemd starts no other one.
fn until_systemd_gives_up(target: &Path) {
    until("systemd gives the engine up", || {
        systemctl(&["kill", "--signal=KILL", &unit::name(target)]);
        property(target, "ActiveState") == "failed"
    });
}

#[test]
fn a_new_mount_over_dead_ones_keeps_the_lowest_layer_alone_below() {
    in_node(|| {
        runtime().block_on(async {
            let home = Home::new();
            let (driver, target) = (home.driver(), home.target("u1"));
            let layers =
                || -> Vec<String> { Mounts::read().unwrap().layers(&target).map(str::to_owned).collect() };
            driver.mount(home.request("u1")).await.unwrap();
            let first = layers();
            // A container with HostToContainer has a copy of the first mount, and what is mounted over that.
            let inside = home.root.join("container");
            fs::create_dir(&inside).unwrap();
            rustix::mount::mount_bind(&target, &inside).unwrap();
            rustix::mount::mount_change(&inside, rustix::mount::MountPropagationFlags::DOWNSTREAM).unwrap();

            until_systemd_gives_up(&target);
            // This waits until systemd has closed the device.
            let health = driver.0.probes.check(&target, LONG).await;
            assert!(matches!(health, Health::Dead(_)), "{health:?}");
            // Engines that mounted over the one before them and died, too.
            for _ in 0..3 {
                let device = sys::open_device().unwrap();
                sys::mount_fuse(device.as_fd(), &target, false).unwrap();
            }
            assert_eq!(layers().len(), 4);

            driver.mount(home.request("u1")).await.unwrap();
            let now = layers();
            assert_eq!((first.len(), now.len()), (1, 2));
            assert_eq!(first[0], now[0]);
            assert_eq!(hello(&target).unwrap(), "from the bucket");
            assert_eq!(hello(&inside).unwrap(), "from the bucket", "the container follows");
            driver.mount(home.request("u1")).await.unwrap();
            assert_eq!(layers(), now, "a refresh takes no layer away");

            sys::unmount(&inside, Busy::Detach).unwrap();
            driver.unmount(&target).await.unwrap();
            home.assert_nothing_is_left("u1");
        });
    });
}
