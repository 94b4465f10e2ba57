//! Plain HTTP on the client, metrics and peer listeners: which path is what, and how answers look (`etcd-surface` 1.5).
//!
//! Paths are matched as Go's `ServeMux` does it: an unclean path is redirected to the clean one, an unknown one gets
//! its
//! 404. What needs the member's state is asked of the log core and answered when it has replied.

use super::confirm::Read;
use super::hashes::HASH_KV;
use super::health::{self, Check, Failure, Kind};
use super::maintenance::StatusFor;
use super::peer;
use super::service::Api;
use super::waiting::Waiting;
use crate::grpc::Status;
use crate::http::date::Civil;
use crate::http::http1;
use crate::net::{Exchange, Net};
use crate::raft::messages::{Request, Status as MemberStatus};
use crate::state::version::storage_version;
use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a listener offers over plain HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offer {
    /// Everything, with CORS fields, as etcd's client URLs do.
    #[default]
    Client,
    /// `/metrics` and health alone.
    Metrics,
    /// What peers ask each other: `/version` and `/members` so far.
    Peer,
}

/// What is answered when the member's state is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// `/metrics`, by whatever method.
    Metrics,
    /// `/version`.
    Version,
    /// `/members`.
    Members,
    /// `/downgrade/enabled`.
    Downgrade,
    /// `/health`, leaving alarms of these names out.
    Health { excluded: Vec<String>, serializable: bool },
    /// `/livez`, `/readyz` and the paths of single checks.
    Checks {
        kind: Kind,
        checks: Vec<Check>,
        verbose: bool,
    },
}

impl Page {
    /// Whether it says that linearizable reads are answered.
    fn is_linearizable(&self) -> bool {
        match self {
            Page::Health { serializable, .. } => !serializable,
            Page::Checks { checks, .. } => checks.contains(&Check::LinearizableRead),
            Page::Downgrade => true,
            Page::Metrics | Page::Version | Page::Members => false,
        }
    }
}

/// A request that waits for the member's state.
#[derive(Debug)]
pub(super) struct Asked {
    exchange: Exchange,
    offer: Offer,
    page: Page,
    /// Why a read that had to be confirmed is not.
    unconfirmed: Option<Status>,
}

impl Asked {
    /// Whether there is something to tell although a linearizable read failed.
    pub fn survives(&mut self, failure: &Status) -> bool {
        let survives = matches!(self.page, Page::Checks { .. }) && self.unconfirmed.is_none();
        self.unconfirmed = Some(failure.clone());
        survives
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub status: u16,
    pub fields: Vec<(&'static str, Cow<'static, str>)>,
    pub body: String,
}

impl Response {
    /// A body of this type.
    pub fn new(status: u16, content_type: &'static str, body: String) -> Response {
        let fields = vec![("Content-Type", content_type.into())];
        Response { status, fields, body }
    }

    /// Plain text that browsers are to take for nothing else, as Go's `http.Error` sends it, the line's end included.
    pub fn error(status: u16, text: &str) -> Response {
        Response::plain(status, format!("{text}\n"))
    }

    /// Plain text that browsers are to take for nothing else.
    pub fn plain(status: u16, body: String) -> Response {
        Response::new(status, TEXT, body).with("X-Content-Type-Options", "nosniff")
    }

    pub fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Response {
        self.fields.push((name, value.into()));
        self
    }
}

/// The type of plain text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// The type of Prometheus' text format, with etcd's parameters.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// What etcd's client listeners add to every answer; `--cors` may be nothing but `*`.
const CORS: [(&str, &str); 3] = [
    ("Access-Control-Allow-Headers", "accept, content-type, authorization"),
    ("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE"),
    ("Access-Control-Allow-Origin", "*"),
];

/// etcd makes sure by reading; what stands for that read here is counted like it.
const HEALTH_RANGES: u64 = 1;

/// Where a request leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Page(Page),
    Answer(Response),
}

impl Api {
    /// Answers a plain request, now or when the member's state is known.
    pub(super) fn http(&mut self, net: &mut Net, exchange: Exchange, request: &http1::Request, body: &[u8]) {
        let listener = net.peer(exchange.connection).map_or(0, |peer| peer.listener);
        let offer = self.settings.offers.get(listener).copied().unwrap_or_default();
        if offer == Offer::Peer && request.path() == HASH_KV {
            return self.hash_asked(net, exchange, request, body);
        }
        if offer == Offer::Peer && self.peer_asks(net, exchange, request, body) {
            return;
        }
        match route(offer, request) {
            Route::Answer(response) => respond(net, exchange, offer, &response),
            Route::Page(Page::Checks { kind, checks, verbose }) if !checks.iter().any(|check| check.needs_status()) => {
                let unasked = Err("nothing asks for the member's state");
                let response = self.check(kind, &checks, verbose, unasked, None);
                respond(net, exchange, offer, &response);
            }
            Route::Page(page) => {
                // Without a leader /health says so and does not try.
                let is_told = matches!(page, Page::Health { .. }) && self.settings.standing.leader() == 0;
                let is_confirmed = page.is_linearizable() && self.others_decide() && !is_told;
                let unconfirmed = None;
                let want = StatusFor::Http(Asked {
                    exchange,
                    offer,
                    page,
                    unconfirmed,
                });
                if is_confirmed {
                    return self.confirm(net, Read::Status { want });
                }
                self.ask(net, Waiting::Status { want }, |token| Request::Status { token });
            }
        }
    }

    /// The member's state came, or will not.
    pub(super) fn http_status_known(&mut self, net: &mut Net, asked: Asked, status: Result<&MemberStatus, &Status>) {
        let Asked {
            exchange,
            offer,
            page,
            unconfirmed,
        } = asked;
        let response = match (page, status) {
            (Page::Metrics, status) => {
                let page = self.metrics_page(status.ok());
                // As with etcd, a page does not count itself.
                self.own_metrics().scrapes.add(1);
                Response::new(200, METRICS, page)
            }
            (Page::Version, Ok(status)) => self.version(status),
            (Page::Members, Ok(status)) => peer::members(self.settings.identity.cluster_id, &status.members),
            (Page::Downgrade, status) => peer::downgrade(self.settings.identity.cluster_id, status),
            (Page::Version | Page::Members, Err(error)) => Response::error(503, &error.message),
            (Page::Health { excluded, serializable }, status) => {
                let problem = match status {
                    Ok(status) => health::problem(status, &excluded, serializable),
                    Err(error) => Some(format!("RANGE ERROR:{}", error.message)),
                };
                let metrics = self.own_metrics();
                metrics.ranges.add(HEALTH_RANGES);
                if problem.is_some() {
                    &metrics.unhealthy
                } else {
                    &metrics.healthy
                }
                .add(1);
                health::response(problem)
            }
            (Page::Checks { kind, checks, verbose }, status) => {
                let status = status.map_err(|error| error.message.as_ref());
                self.check(kind, &checks, verbose, status, unconfirmed.as_ref())
            }
        };
        respond(net, exchange, offer, &response);
    }

    fn check(
        &mut self,
        kind: Kind,
        checks: &[Check],
        verbose: bool,
        status: Result<&MemberStatus, Failure>,
        unconfirmed: Option<&Status>,
    ) -> Response {
        let own = self.settings.identity.member_id;
        let results = checks.iter().map(|check| match unconfirmed {
            Some(failure) if *check == Check::LinearizableRead => (*check, Err(failure.message.to_string())),
            _ => (*check, check.run(own, status)),
        });
        let results: Vec<_> = results.collect();
        for (check, result) in &results {
            let metrics = self.own_metrics();
            metrics.count_check(health::check_number(kind, *check), result.is_ok());
            metrics.ranges.add(if check.reads() { HEALTH_RANGES } else { 0 });
        }
        health::checked(kind, &results, verbose)
    }

    fn version(&self, status: &MemberStatus) -> Response {
        let cluster = status.cluster_version.as_deref().unwrap_or("not_decided");
        let storage = storage_version(status.cluster_version.as_deref());
        let server = self.settings.version;
        let body = format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"{storage}"}}"#);
        Response::new(200, "application/json", body)
    }
}

pub(super) fn respond(net: &mut Net, exchange: Exchange, offer: Offer, response: &Response) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = Civil::from_unix(now.as_secs()).to_string();
    let mut fields: Vec<(&str, &str)> = Vec::with_capacity(8);
    if offer == Offer::Client {
        fields.extend(CORS);
    }
    fields.extend(response.fields.iter().map(|(name, value)| (*name, value.as_ref())));
    fields.push(("Date", &date));
    // An exchange whose peer is gone needs no answer.
    let _ = net.respond(exchange, response.status, &fields, response.body.as_bytes());
}

/// Answers another member's question.
pub(super) fn respond_protobuf(net: &mut Net, exchange: Exchange, body: &[u8]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = Civil::from_unix(now.as_secs()).to_string();
    let fields = [("Content-Type", "application/protobuf"), ("Date", &date)];
    // An exchange whose peer is gone needs no answer.
    let _ = net.respond(exchange, 200, &fields, body);
}

fn route(offer: Offer, request: &http1::Request) -> Route {
    if offer == Offer::Client && request.method == "OPTIONS" {
        let (fields, body) = (Vec::new(), String::new());
        return Route::Answer(Response {
            status: 200,
            fields,
            body,
        });
    }
    let path = unescape(request.path(), false).unwrap_or_else(|| request.path().to_string());
    let clean = clean_path(&path);
    if clean != path {
        return Route::Answer(redirect(&request.method, &clean, request.query()));
    }
    let query = Query::parse(request.query());
    let page = match path.as_str() {
        "/version" if offer != Offer::Metrics => Page::Version,
        "/members" if offer == Offer::Peer => Page::Members,
        "/downgrade/enabled" if offer == Offer::Peer => Page::Downgrade,
        _ if offer == Offer::Peer => return Route::Answer(Response::error(404, "404 page not found")),
        "/metrics" => return Route::Page(Page::Metrics),
        "/health" => Page::Health {
            excluded: query.all("exclude"),
            serializable: query.first("serializable") == Some("true"),
        },
        _ => match Kind::of_path(&path) {
            Some((kind, None)) => {
                let excluded = query.all("exclude");
                let checks = kind.checks().iter().copied();
                let checks = checks.filter(|check| !excluded.iter().any(|name| name == check.name()));
                let verbose = query.has("verbose");
                Page::Checks {
                    kind,
                    checks: checks.collect(),
                    verbose,
                }
            }
            Some((kind, Some(check))) => Page::Checks {
                kind,
                checks: vec![check],
                verbose: query.has("verbose"),
            },
            None => return Route::Answer(Response::error(404, "404 page not found")),
        },
    };
    if request.method != "GET" {
        return Route::Answer(Response::error(405, "Method Not Allowed").with("Allow", "GET"));
    }
    Route::Page(page)
}

/// Go's answer to a path that is not clean.
fn redirect(method: &str, clean: &str, query: &str) -> Response {
    let mut location = escape_path(clean);
    if !query.is_empty() {
        location = format!("{location}?{query}");
    }
    let (fields, body) = (Vec::new(), String::new());
    let mut response = Response {
        status: 307,
        fields,
        body,
    };
    if matches!(method, "GET" | "HEAD") {
        let shown = location.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let shown = shown.replace('"', "&#34;").replace('\'', "&#39;");
        response.body = format!("<a href=\"{shown}\">Temporary Redirect</a>.\n\n");
        response = response.with("Content-Type", "text/html; charset=utf-8");
    }
    response.with("Location", location)
}

/// A path without `.`, `..` and empty parts, beginning with a slash and ending with one if it did.
fn clean_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{end}", parts.join("/"))
}

fn escape_path(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~$&+,:;=@!'()*".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The text that percent signs (and in queries plus signs) stand for. `None` when it is malformed.
fn unescape(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        bytes.push(match byte {
            b'%' => {
                let (high, low) = (char::from(*rest.first()?), char::from(*rest.get(1)?));
                rest = &rest[2..];
                (high.to_digit(16)? * 16 + low.to_digit(16)?) as u8
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names and values of a query; malformed pairs are left out, as Go does it.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Query {
        let pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
        let pairs = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescape(name, true)?, unescape(value, true)?))
        });
        Query(pairs.collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(found, _)| found == name)
    }

    fn first(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(found, _)| found == name)?;
        Some(value)
    }

    /// Every value of a name that is not empty.
    fn all(&self, name: &str) -> Vec<String> {
        let found = self
            .0
            .iter()
            .filter(|(found, value)| found == name && !value.is_empty());
        found.map(|(_, value)| value.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
