//! `sts`: a token service and an agent of nodes for the lab, in front of a cluster's API server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use sidecars::sts::agent::{self, Agent};
use sidecars::sts::{Keys, Role, Service};

/// Exchanges tokens of service accounts for keys of a store.
///
/// A token counts if the API server signed it, for the audience, and it has not expired; a role's keys go to the subject it trusts.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Audience that tokens must name
    #[arg(long, default_value = "sts.amazonaws.com", value_name = "AUDIENCE")]
    audience: String,
    /// A role and the subject that it trusts (may be given several times)
    #[arg(long = "role", value_name = "ARN=SUBJECT=ACCESS_KEY")]
    roles: Vec<String>,
    /// A subject whose tokens for pods.eks.amazonaws.com get this access key of the agent, at /v1/credentials (may be given several times)
    #[arg(long = "association", value_name = "SUBJECT=ACCESS_KEY")]
    associations: Vec<String>,
    /// The secret of every access key is the key followed by this
    #[arg(long, env = "STS_SECRET", hide_env_values = true)]
    secret: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let client = Client::try_default().await.context("finding the API server")?;
    let issuer = document(&client, "/.well-known/openid-configuration").await?;
    let keys = Keys::of_jwks(&document(&client, "/openid/v1/jwks").await?);
    let issuer = issuer["issuer"].as_str().unwrap_or_default().to_owned();
    let associations = args.associations.iter().map(|text| association(text, &args.secret));
    let agent = Arc::new(Agent {
        issuer: issuer.clone(),
        keys: keys.clone(),
        associations: associations.collect::<anyhow::Result<BTreeMap<_, _>>>()?,
    });
    let service = Arc::new(Service {
        issuer,
        audience: args.audience,
        keys,
        roles: args
            .roles
            .iter()
            .map(|text| role(text, &args.secret))
            .collect::<anyhow::Result<BTreeMap<_, _>>>()?,
    });
    let code = |status| StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let exchange = post(move |form: String| async move {
        let (status, document) = service.answer(&form, Timestamp::now());
        (code(status), document)
    });
    let hand_out = get(move |headers: HeaderMap| async move {
        let token = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
        let (status, document) = agent.answer(token, Timestamp::now());
        (code(status), [(CONTENT_TYPE, "application/json")], document.to_string())
    });
    let app = Router::new().route("/", exchange).route(agent::PATH, hand_out);
    let listener = tokio::net::TcpListener::bind(args.listen).await.context("listening")?;
    axum::serve(listener, app).await.context("serving")
}

async fn document(client: &Client, path: &str) -> anyhow::Result<Value> {
    let request = axum::http::Request::get(path).body(Vec::new())?;
    client.request(request).await.with_context(|| format!("asking the API server for {path}"))
}

fn association(text: &str, secret: &str) -> anyhow::Result<(String, (String, String))> {
    let (subject, key) = text
        .split_once('=')
        .with_context(|| format!("--association {text:?} is not of the form SUBJECT=ACCESS_KEY"))?;
    Ok((subject.to_owned(), (key.to_owned(), format!("{key}{secret}"))))
}

fn role(text: &str, secret: &str) -> anyhow::Result<(String, Role)> {
    let parts: Vec<&str> = text.split('=').collect();
    ensure!(parts.len() == 3, "--role {text:?} is not of the form ARN=SUBJECT=ACCESS_KEY");
    let role = Role {
        subject: parts[1].into(),
        access_key: parts[2].into(),
        secret_key: format!("{}{secret}", parts[2]),
    };
    Ok((parts[0].to_owned(), role))
}
