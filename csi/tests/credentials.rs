//! The keys of a mount, as the kubelet's calls name them, and the proxy on their way. Only the mounter is a double.

mod harness;

use std::collections::HashMap;

use csi::contract::volume;
use harness::{Driver, HUSH};
use tonic::Code;

#[tokio::test]
async fn the_keys_are_those_that_the_volume_says() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "secret".into());
    call.secrets =
        secrets(&[("access_key_id", "VOLUMEKEY"), ("secret_access_key", HUSH), ("session_token", HUSH)]);
    driver.publish(call).await.unwrap();
    let mount = &driver.mounter.mounts()[0];
    let keys = mount.credentials.as_ref().unwrap();
    assert_eq!((keys.access_key_id.as_str(), keys.session_token.as_deref()), ("VOLUMEKEY", Some(HUSH)));
    assert!(mount.args.iter().any(|arg| arg.ends_with("credential-source#secret")), "{:?}", mount.args);
    assert!(!format!("{mount:?}").contains(HUSH), "keys are in no argument and no variable");
}

/// Goal: a volume that names a Secret gets its keys, and never the driver's in their place.
#[tokio::test]
async fn a_volume_with_a_secret_uses_it_whatever_it_says_of_its_source() {
    for said in [None, Some(""), Some("driver"), Some("secret")] {
        let driver = Driver::start().await;
        let mut call = driver.call();
        if let Some(said) = said {
            call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), said.into());
        }
        call.secrets = secrets(&[("access_key_id", "VOLUMEKEY"), ("secret_access_key", HUSH)]);
        driver.publish(call.clone()).await.unwrap();
        let mount = &driver.mounter.mounts()[0];
        assert_eq!(mount.credentials.as_ref().unwrap().access_key_id, "VOLUMEKEY", "{said:?}");
        assert!(mount.args.iter().any(|arg| arg.ends_with("credential-source#secret")), "{:?}", mount.args);
        call.secrets.remove("secret_access_key");
        let status = driver.publish(call).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{said:?}: {status}");
        assert!(status.message().contains("nodePublishSecretRef"), "{status}");
    }
}

/// Goal: every bad call is InvalidArgument, names the field and a remedy, shows no secret, and reaches no mounter.
#[tokio::test]
async fn a_workload_s_own_identity_is_its_token_and_never_the_driver_s_keys() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "pod".into());
    let status = driver.publish(call.clone()).await.unwrap_err();
    assert!(
        status.code() == Code::FailedPrecondition && status.message().contains("tokenRequests"),
        "{status}"
    );
    let tokens = format!("{{\"sts.amazonaws.com\": {{\"token\": \"{HUSH}\"}}}}");
    call.volume_context.insert(volume::CONTEXT_TOKENS.into(), tokens);
    driver.publish(call.clone()).await.unwrap();
    call.volume_context.insert(volume::STS_REGION.into(), "eu-west-2".into());
    driver.publish(call.clone()).await.unwrap();
    // A Secret goes first, as everywhere.
    call.secrets = secrets(&[("access_key_id", "VOLUMEKEY"), ("secret_access_key", HUSH)]);
    driver.publish(call).await.unwrap();
    let mounts = driver.mounter.mounts();
    let sts = |at: usize| {
        mounts[at].env.iter().find(|(key, _)| key == "AWS_ENDPOINT_URL_STS").map(|(_, url)| url.as_str())
    };
    assert_eq!(
        [sts(0), sts(1), sts(2)],
        [Some("https://sts.us-east-1.amazonaws.com"), Some("https://sts.eu-west-2.amazonaws.com"), None]
    );
    for mount in &mounts[..2] {
        assert!(mount.credentials.is_none() && mount.token.as_ref().unwrap().0 == HUSH);
        assert!(mount.args.iter().any(|arg| arg.contains("credential-source#pod")), "{:?}", mount.args);
    }
    assert!(
        mounts[2].token.is_none() && mounts[2].credentials.as_ref().unwrap().access_key_id == "VOLUMEKEY"
    );
    assert!(!format!("{mounts:?}").contains(HUSH));
}

/// The mounter chooses between both tokens by the attachment.
#[tokio::test]
async fn an_agent_of_the_node_has_a_token_of_its_own_audience() {
    let url = "http://169.254.170.23/v1/credentials";
    let driver = Driver::start_with_agent(url).await;
    let mut call = driver.call();
    call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "pod".into());
    let token = |text: &str| serde_json::json!({"token": text});
    let mut tokens = serde_json::json!({"sts.amazonaws.com": token(HUSH)});
    call.volume_context.insert(volume::CONTEXT_TOKENS.into(), tokens.to_string());
    let status = driver.publish(call.clone()).await.unwrap_err();
    let words = status.message();
    assert!(words.contains("pods.eks.amazonaws.com") && words.contains("podIdentity.agentUrl"), "{words}");
    let for_agent = format!("{HUSH}.agent");
    tokens["pods.eks.amazonaws.com"] = token(&for_agent);
    call.volume_context.insert(volume::CONTEXT_TOKENS.into(), tokens.to_string());
    driver.publish(call.clone()).await.unwrap();
    call.volume_context.insert(volume::AUTHENTICATION_SOURCE.into(), "driver".into());
    driver.publish(call).await.unwrap();
    let mounts = driver.mounter.mounts();
    let agent = mounts[0].agent.as_ref().unwrap();
    assert_eq!((agent.url.as_str(), agent.token.0.as_str()), (url, for_agent.as_str()));
    assert!(mounts[0].token.as_ref().unwrap().0 == HUSH && mounts[0].credentials.is_none());
    assert_eq!(mounts[1].agent, None, "another volume's keys are the driver's");
    assert!(!format!("{mounts:?}").contains(HUSH));
}

#[tokio::test]
async fn a_volume_says_through_which_proxy_its_requests_go() {
    let driver = Driver::start().await;
    let mut call = driver.call();
    for (name, value) in [("HTTPS_PROXY", "http://proxy.test:3128"), ("NO_PROXY", ".inside.test")] {
        call.volume_context.insert(format!("mountpointEnv.{name}"), value.to_owned());
    }
    driver.publish(call.clone()).await.unwrap();
    let env = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        driver.mounter.mounts()[0].env[..2],
        [env("HTTPS_PROXY", "http://proxy.test:3128"), env("NO_PROXY", ".inside.test")]
    );
    assert!(driver.notice().is_none(), "no attribute of it is unknown");
    for (name, value) in [
        ("LD_PRELOAD", HUSH.to_owned()),
        ("AWS_ROLE_ARN", HUSH.to_owned()),
        ("NO_PROXY", format!("{HUSH}\n")),
    ] {
        let mut call = call.clone();
        call.volume_context.insert(format!("mountpointEnv.{name}"), value);
        let status = driver.publish(call).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(
            status.message().contains(&format!("mountpointEnv.{name}")) && !status.message().contains(HUSH),
            "{status}"
        );
    }
}

fn secrets(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
