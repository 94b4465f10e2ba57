//! `grpc.health.v1` as a client sees it, on ringd and on etcd 3.7.1: one status at the start, no change with an alarm
//! (there only a defragmentation changes it, and only when a feature gate says so; here none ever does), and the end
//! with the member.

mod support;

use ringd::proto::etcdserverpb as pb;
use ringd::proto::health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};
use std::time::{Duration, Instant};
use support::etcd;
use support::grpc::{Channel, Stream};
use support::server::{Program, Server};
use tokio::time::timeout;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// gRPC's code for a call that its server ended by going away, and for a service that is not known.
const UNAVAILABLE: i32 = 14;
const NOT_FOUND: i32 = 5;
/// How long nothing has to come.
const QUIET: Duration = Duration::from_millis(300);
/// Watching calls must not hold up the end of a member: less than a stop that waits for its clients takes.
const STOP: Duration = Duration::from_secs(4);

async fn watch(channel: &Channel, service: &str) -> (Stream, i32) {
    let mut stream = channel.stream(WATCH, &[]).await.expect("a stream");
    let request = HealthCheckRequest {
        service: service.to_string(),
    };
    stream.send(&request).expect("a request");
    stream.finish_sending().expect("the end");
    let first: HealthCheckResponse = stream.next().await.expect("a status").expect("a status");
    (stream, first.status)
}

/// What there is to see of a server until it has been told to stop.
async fn see(server: &Server) -> Vec<Stream> {
    let channel = Channel::connect(&server.address()).await.expect("a connection");
    let request = |service: &str| HealthCheckRequest {
        service: service.to_string(),
    };
    let check = channel.call::<HealthCheckResponse>(CHECK, &request("")).await;
    assert_eq!(check.expect("a status").status, ServingStatus::Serving as i32);
    let unknown = channel.call::<HealthCheckResponse>(CHECK, &request("x")).await;
    assert_eq!(unknown.expect_err("no status").code, NOT_FOUND);
    let (mut all, status) = watch(&channel, "").await;
    assert_eq!(status, ServingStatus::Serving as i32);
    let (unknown, status) = watch(&channel, "etcdserverpb.KV").await;
    assert_eq!(status, ServingStatus::ServiceUnknown as i32);
    let alarm = pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Activate as i32,
        member_id: 1,
        alarm: pb::AlarmType::Nospace as i32,
    };
    let _: pb::AlarmResponse = channel.call(etcd::ALARM, &alarm).await.expect("an alarm");
    let more = timeout(QUIET, all.next::<HealthCheckResponse>()).await;
    assert!(more.is_err(), "an alarm is no change: {more:?}");
    vec![all, unknown]
}

fn check(program: Program) {
    // etcd waits minutes for its clients to end such calls, so it is not stopped.
    if program != Program::Ringd {
        let server = Server::start(program, &[]);
        support::block_on(async { drop(see(&server).await) });
        return;
    }
    // A machine that is busy elsewhere may hold up one stop; one that waits for its clients is late every time.
    let fastest = (0..3).map(|_| time_to_the_end_of_streams()).find(|took| *took < STOP);
    assert!(fastest.is_some(), "no stop ended its streams within {STOP:?}");
}

/// How long a server that is told to stop takes to end the calls that watch it.
fn time_to_the_end_of_streams() -> Duration {
    let mut server = Server::start(Program::Ringd, &[]);
    support::block_on(async {
        let streams = see(&server).await;
        let began = Instant::now();
        server.signal("TERM");
        for mut stream in streams {
            let ended = stream.next::<HealthCheckResponse>().await;
            let status = ended.expect_err("the stream ends with the member");
            assert_eq!(status.code, UNAVAILABLE, "{status:?}");
        }
        let took = began.elapsed();
        assert!(server.stop_told().success());
        took
    })
}

#[test]
fn a_status_is_told_and_watched() {
    check(Program::Ringd);
}

#[cfg(feature = "blackbox")]
#[test]
fn etcd_tells_the_same() {
    check(Program::Reference);
}
