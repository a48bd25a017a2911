//! Replays the seeds of the fuzz targets, but for that of the packet path.

#[path = "../../fuzz/bodies/client_hello.rs"]
mod client_hello;
#[path = "../../fuzz/bodies/http_head.rs"]
mod http_head;
#[path = "../../fuzz/bodies/proxy_header.rs"]
mod proxy_header;
#[path = "../../fuzz/bodies/request_body.rs"]
mod request_body;
#[path = "../../fuzz/bodies/request_path.rs"]
mod request_path;
#[path = "../../fuzz/bodies/response_head.rs"]
mod response_head;
#[path = "../../fuzz/bodies/rule_expression.rs"]
mod rule_expression;
#[path = "../../fuzz/bodies/seeds.rs"]
mod seeds;

#[test]
fn heads() {
    seeds::replay("http_head", http_head::check);
}

#[test]
fn paths() {
    seeds::replay("request_path", request_path::check);
}

#[test]
fn rules() {
    seeds::replay("rule_expression", rule_expression::check);
}

#[test]
fn client_hellos() {
    seeds::replay("client_hello", client_hello::check);
}

#[test]
fn proxy_headers() {
    seeds::replay("proxy_header", proxy_header::check);
}

#[test]
fn request_bodies() {
    seeds::replay("request_body", request_body::check);
}

#[test]
fn response_heads() {
    seeds::replay("response_head", response_head::check);
}
