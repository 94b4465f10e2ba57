//! Names, kinds and sums of the series.

use super::*;

#[test]
fn methods_have_the_types_that_etcd_names() {
    assert_eq!(grpc_type(Method::Watch), "bidi_stream");
    assert_eq!(grpc_type(Method::LeaseKeepAlive), "bidi_stream");
    assert_eq!(grpc_type(Method::RangeStream), "server_stream");
    assert_eq!(grpc_type(Method::Snapshot), "server_stream");
    assert_eq!(grpc_type(Method::Put), "unary");
    assert_eq!(request_type(Method::Compact), "Compaction");
    assert_eq!(request_type(Method::LeaseGrant), "LeaseGrant");
    for (number, method) in Method::ALL.iter().enumerate() {
        assert_eq!(*method as usize, number);
    }
    for kind in [Checks::Live, Checks::Ready] {
        assert!(
            kind.checks()
                .iter()
                .all(|check| health::check_number(kind, *check) < health::CHECKS)
        );
    }
}

#[test]
fn cores_add_up() {
    let registry = Api::registry(2);
    for core in registry.cores() {
        core.methods[Method::Put as usize].started.add(2);
        core.methods[Method::Put as usize].handled[0].add(1);
        core.methods[Method::Put as usize]
            .succeeded
            .observe(std::time::Duration::from_millis(3));
    }
    registry.core(0).count_check(1, true);
    registry.core(1).count_check(1, false);
    let mut text = Text::default();
    put_grpc(&mut text, &registry);
    put_requests(&mut text, &registry);
    put_health(&mut text, &registry);
    let page = text.finish();
    let put = r#"grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary""#;
    for line in [
        &format!("grpc_server_started_total{{{put}}} 4"),
        &format!(r#"grpc_server_handled_total{{grpc_code="OK",{put}}} 2"#),
        &format!(r#"grpc_server_handled_total{{grpc_code="Canceled",{put}}} 0"#),
        r#"etcd_server_request_duration_seconds_bucket{success="true",type="Put",le="0.002"} 0"#,
        r#"etcd_server_request_duration_seconds_bucket{success="true",type="Put",le="0.004"} 2"#,
        r#"ringd_request_duration_seconds_count{success="true",type="Put"} 2"#,
        r#"etcd_server_healthcheck{name="data_corruption",type="readyz"} 0"#,
        r#"etcd_server_healthchecks_total{name="data_corruption",status="error",type="readyz"} 1"#,
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}
