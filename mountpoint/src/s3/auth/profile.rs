//! Settings of the store from the environment and `~/.aws/config`, with the rules of AWS's SDKs: `endpoint_url` (also in a `services`
//! section), `use_fips_endpoint` and `use_dualstack_endpoint`.

use std::borrow::Cow;

use aws_config::profile::{ProfileSet, load};
use aws_runtime::env_config::EnvConfigValue;
use aws_runtime::env_config::file::EnvConfigFiles;
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_types::os_shim_internal::{Env, Fs};

use crate::s3::Config;
use crate::s3::url::shown;

/// The variable that turns off endpoints from files.
const IGNORE_ENDPOINTS: &str = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS";

/// Adds settings from the environment and the files to those of the flags. An endpoint of a flag stays.
pub(crate) async fn complete(config: &mut Config) {
    complete_from(config, &Fs::real(), &Env::real()).await;
}

pub(crate) async fn complete_from(config: &mut Config, fs: &Fs, env: &Env) {
    let profile = config.profile.clone().map(Cow::Owned);
    let profiles = match load(fs, env, &EnvConfigFiles::default(), profile).await {
        Ok(profiles) => Some(profiles),
        Err(error) => {
            tracing::warn!("no settings are taken from ~/.aws/config: {}", DisplayErrorContext(&error));
            None
        }
    };
    let profiles = profiles.as_ref();
    let ignored = switch(IGNORE_ENDPOINTS, "ignore_configured_endpoint_urls", env, profiles);
    if config.endpoint_url.is_none() && !ignored {
        // Variables with an endpoint were read with the flags, so only the files are left.
        let found = EnvConfigValue::new().profile("endpoint_url").service_id("s3").load(env, profiles);
        if let Some((url, _)) = found {
            tracing::info!("the endpoint {} is from ~/.aws/config", shown(&url));
            config.endpoint_url = Some(url.into_owned());
        }
    }
    config.fips |= switch("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint", env, profiles);
    config.dual_stack |= switch("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint", env, profiles);
}

/// Reads a setting that is on or off. Another value than true or false is logged as a warning and means off.
fn switch(variable: &str, key: &str, env: &Env, profiles: Option<&ProfileSet>) -> bool {
    let Some((value, _)) = EnvConfigValue::new().env(variable).profile(key).load(env, profiles) else {
        return false;
    };
    match value.trim() {
        value if value.eq_ignore_ascii_case("true") => true,
        value if value.is_empty() || value.eq_ignore_ascii_case("false") => false,
        value => {
            tracing::warn!(
                "{variable} (in a profile {key}) is {value:?}, neither true nor false: it stays off"
            );
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
[default]
endpoint_url = http://default:1
[profile own]
endpoint_url = http://own:2
use_fips_endpoint = true
use_dualstack_endpoint = TRUE
[profile of-service]
endpoint_url = http://all:3
services = mine
[services mine]
s3 =
  endpoint_url = http://s3:4
";

    async fn completed(given: Config, variables: &[(&str, &str)]) -> Config {
        let fs = Fs::from_slice(&[("/config", FILE)]);
        let mut all = vec![("HOME", "/home"), ("AWS_CONFIG_FILE", "/config")];
        all.extend(variables);
        let mut config = given;
        complete_from(&mut config, &fs, &Env::from_slice(&all)).await;
        config
    }

    fn of(profile: &str) -> Config {
        Config { profile: Some(profile.into()), ..Config::default() }
    }

    #[tokio::test]
    async fn the_profile_names_the_endpoint_unless_a_flag_does_or_it_is_ignored() {
        let url = |config: Config| config.endpoint_url.unwrap_or_default();
        assert_eq!(url(completed(Config::default(), &[]).await), "http://default:1");
        assert_eq!(url(completed(Config::default(), &[("AWS_PROFILE", "own")]).await), "http://own:2");
        assert_eq!(url(completed(of("own"), &[]).await), "http://own:2");
        assert_eq!(url(completed(of("of-service"), &[]).await), "http://s3:4");
        assert_eq!(url(completed(of("own"), &[(IGNORE_ENDPOINTS, "true")]).await), "");
        let given = Config { endpoint_url: Some("http://flag:5".into()), ..of("own") };
        assert_eq!(url(completed(given, &[]).await), "http://flag:5");
    }

    #[tokio::test]
    async fn the_variable_switches_fips_and_dual_stack_or_else_the_profile() {
        let on = |config: Config| (config.fips, config.dual_stack);
        assert_eq!(on(completed(of("own"), &[]).await), (true, true));
        assert_eq!(on(completed(of("own"), &[("AWS_USE_FIPS_ENDPOINT", "false")]).await), (false, true));
        assert_eq!(
            on(completed(of("default"), &[("AWS_USE_DUALSTACK_ENDPOINT", "true")]).await),
            (false, true)
        );
        assert_eq!(
            on(completed(of("default"), &[("AWS_USE_FIPS_ENDPOINT", "perhaps")]).await),
            (false, false)
        );
    }
}
