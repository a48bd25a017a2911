//! Arbitrary text never makes the parser panic.

use proptest::prelude::*;

use crate::config::parse;

/// Pieces of configurations, so that random text gets past the TOML parser.
fn fragment() -> impl Strategy<Value = String> {
    let words = vec![
        "[daemon]\n",
        "[datapath]\n",
        "[[listener]]\n",
        "[[pool]]\n",
        "[[pool.instance]]\n",
        "[[rule]]\n",
        "[default_rule]\n",
        "[pool.check]\n",
        "name = \"a\"\n",
        "address = \"10.0.0.1:80\"\n",
        "address = \"[::]:1\"\n",
        "match = 'Host(\"a\")'\n",
        "match = \"Path(\\\"\\\\d\"\n",
        "pool = \"a\"\n",
        "action = \"deny\"\n",
        "status = 403\n",
        "workers = 9\n",
        "check = { type = \"tcp\" }\n",
        "type = \"http\"\n",
        "pools = [\"a\"]\n",
        "interfaces = []\n",
        "source_addresses = [\"::1\"]\n",
        "source_ports = \"1-2\"\n",
        "weight = 0\n",
        "expect = []\n",
    ];
    prop_oneof![4 => prop::sample::select(words).prop_map(str::to_owned), 1 => "\\PC{0,20}\n", 1 => "[a-z_]{1,12} = ['\"\\[{0-9][^\n]{0,12}\n"]
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "(?s).{0,200}") {
        if let Err(errors) = parse("r.toml", &text) {
            prop_assert!(!errors.is_empty() && !errors.to_string().is_empty() && !errors.graphical(false).is_empty());
        }
    }

    #[test]
    fn arbitrary_configurations_never_panic(pieces in prop::collection::vec(fragment(), 0..24)) {
        if let Err(errors) = parse("r.toml", &pieces.concat()) {
            prop_assert!(!errors.is_empty() && !errors.to_string().is_empty() && !errors.graphical(true).is_empty());
        }
    }

    #[test]
    fn a_configuration_cut_anywhere_never_panics(at in 0usize..3_000) {
        let text = include_str!("../../../../examples/gateway.toml");
        let cut = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let _ = parse("r.toml", &text[..cut]).map_err(|errors| errors.graphical(false));
    }
}
