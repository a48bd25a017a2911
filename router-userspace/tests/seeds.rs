//! Replays the seeds of the fuzz targets for heads, paths and rules.

#[path = "../../fuzz/bodies/http_head.rs"]
mod http_head;
#[path = "../../fuzz/bodies/request_path.rs"]
mod request_path;
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
