//! The figures as bars, in SVG: a panel for each workload, a bar for each contender.

use std::fmt::Write;

use super::contender::Contender;
use super::figures::Figure;
use super::report::number;
use super::workload::Workload;

const WIDTH: f64 = 860.0;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 150.0;
const LONGEST: f64 = 470.0;
const BAR: f64 = 18.0;
const PITCH: f64 = 24.0;
const TITLE: f64 = 34.0;
const GAP: f64 = 22.0;

/// A complete document.
pub fn svg(figures: &[Figure]) -> String {
    let mut panels = String::new();
    let mut top = 10.0;
    for workload in Workload::ALL {
        let bars: Vec<&Figure> = figures.iter().filter(|figure| figure.workload == workload).collect();
        if !bars.is_empty() {
            top = panel(&mut panels, top, workload, &bars) + GAP;
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top}\" viewBox=\"0 0 {WIDTH} {top}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n\
         <title>Throughput of each contender at each workload</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{panels}</svg>\n"
    )
}

/// Draws from `top` downwards, and returns where it ends.
fn panel(to: &mut String, top: f64, workload: Workload, bars: &[&Figure]) -> f64 {
    let scale = LONGEST / bars.iter().map(|bar| bar.greatest).fold(f64::MIN_POSITIVE, f64::max);
    text(to, (10.0, top + 18.0), "start", "bold", &format!("{}, {}", workload.name(), workload.unit()));
    let mut y = top + TITLE;
    for bar in bars {
        let middle = y + BAR / 2.0;
        let length = bar.rate * scale;
        text(to, (LEFT - 8.0, middle + 4.5), "end", "normal", bar.contender.name());
        let fill = colour(bar.contender);
        let _ = writeln!(
            to,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>"
        );
        // From the least to the greatest of all rounds.
        let (least, greatest) = (LEFT + bar.least * scale, LEFT + bar.greatest * scale);
        let _ = writeln!(
            to,
            "<path d=\"M{least:.1} {middle:.1}H{greatest:.1}\" stroke=\"#222222\" stroke-width=\"1.5\"/>"
        );
        let cost = format!("gateway {} {}", number(bar.gateway_cost), bar.cost_unit);
        let label = format!("{}   ({cost})", number(bar.rate));
        text(to, (LEFT + (bar.greatest * scale).max(length) + 8.0, middle + 4.5), "start", "normal", &label);
        y += PITCH;
    }
    y
}

fn text(to: &mut String, (x, y): (f64, f64), anchor: &str, weight: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        to,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\" fill=\"#222222\">{content}</text>"
    );
}

fn colour(contender: Contender) -> &'static str {
    match contender {
        Contender::Routing | Contender::Nftables => "#9aa5b1",
        Contender::RouterAuto | Contender::RouterBind | Contender::RouterHandoff | Contender::RouterRelay => {
            "#2f6fb0"
        }
        Contender::HaproxyTcp | Contender::HaproxyHttp | Contender::Nginx => "#d08a3c",
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures;
    use super::super::figures::tests::measurement;
    use super::*;

    #[test]
    fn the_fastest_has_the_longest_bar_and_every_bar_its_figure() {
        let figures = figures::of(&[
            measurement(0, Contender::Routing, 40_000),
            measurement(0, Contender::HaproxyHttp, 10_000),
        ]);
        let svg = svg(&figures);
        assert!(svg.contains("width=\"470.0\"") && svg.contains("width=\"117.5\""));
        assert!(svg.contains(">40 000   (gateway 12.5 µs/request)<"));
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
