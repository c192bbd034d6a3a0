//! A volume names a Secret, and no keys of it come with the call.

use super::*;

/// Goal: a volume that names a Secret never gets the driver's keys, which may allow more, whatever becomes of that Secret.
#[test]
fn an_empty_secret_is_an_error_and_never_the_drivers_keys() {
    isolated(|| {
        at_home(async |home| {
            let of_secret = |workload, key| MountRequest { of_secret: true, ..home.request(workload, key) };
            let refused = async |mounter: &PodMounter, request: MountRequest| {
                let error = mounter.mount(request).await.unwrap_err();
                assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
                let text = error.to_string();
                assert!(text.contains("nodePublishSecretRef of PersistentVolume pv-1"), "{text}");
                assert!(text.contains("access_key_id") && !text.contains("canary"), "{text}");
                assert!(!home.keys().contains("drivers"));
            };
            let drivers = |workload| home.request(workload, "drivers");
            // A driver without keys of its own would mount with what the engine finds.
            let none = |workload| MountRequest { credentials: None, ..drivers(workload) };
            let mut pod = mountpoint_pod("mp-1", "pod-uid", NODE, "Running");
            pod["metadata"]["annotations"][pod::KEYS] = pod::KEYS_OF_SECRET.into();
            home.server.pods().put("mp-1", pod);
            let seen = || home.mounter.node.assignments.pod("mp-1").is_some_and(|pod| pod.keys_of_secret);
            while !seen() {
                tokio::task::yield_now().await;
            }
            refused(&home.mounter, drivers("w1")).await;
            refused(&home.mounter, none("w1")).await;
            assert!(!home.target("w1").exists() && home.pod.messages().is_empty());

            home.mounter.mount(of_secret("w1", "key-1")).await.unwrap();
            // At the running mount, for another workload, and by a driver started anew that the API server does not answer.
            refused(&home.mounter, drivers("w1")).await;
            refused(&home.mounter, none("w1")).await;
            refused(&home.mounter, drivers("w2")).await;
            assert!(mounted(&home.target("w1")).is_some() && !home.target("w2").exists());
            let gone = Server::start();
            gone.attachments().hide(true);
            gone.pods().hide(true);
            refused(&mounter(&gone, &home.kubelet), drivers("w1")).await;
            assert!(home.keys().contains("key-1"), "the engine goes on with those that it has");
            home.mounter.mount(of_secret("w1", "key-2")).await.unwrap();
            assert!(home.keys().contains("key-2"));
        });
    });
}

/// The reconciler of an older release wrote nothing on them, and an empty Secret looks like none.
#[test]
fn a_mountpoint_pod_of_an_older_release_takes_the_drivers_keys_as_before() {
    isolated(|| {
        at_home(async |home| {
            home.mounter.mount(home.request("w1", "drivers")).await.unwrap();
            home.mounter.mount(home.request("w1", "drivers2")).await.unwrap();
            assert!(home.keys().contains("drivers2"));
        });
    });
}
