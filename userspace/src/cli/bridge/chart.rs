//! The figures of `bridge bench` as bars: a group for each node and path, a bar for each direction.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use tensortier_bridge::measure::Rate;

use super::bench::Report;

const SIZE: (u32, u32) = (1000, 500);
const SERIES: [(&str, RGBColor); 3] = [
    ("to GPU", RGBColor(31, 119, 180)),
    ("from GPU", RGBColor(44, 160, 44)),
    ("both at once", RGBColor(148, 103, 189)),
];

/// The chart as SVG.
pub(super) fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, report).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(text)
}

/// GB/s to the GPU, from it, and both.
fn bars(rate: &Rate) -> [f64; 3] {
    [rate.h2d, rate.d2h, rate.both.unwrap_or(f64::NAN)].map(|value| if value.is_finite() { value / 1e9 } else { 0.0 })
}

fn draw(text: &mut String, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
    let groups = report.rates.len().max(1) as f64;
    let most = report.rates.iter().flat_map(bars).fold(f64::MIN_POSITIVE, f64::max);
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(&format!("{}: copies of {} MiB", report.device, report.bytes >> 20), ("sans-serif", 20))?;
    let mut chart = ChartBuilder::on(&root)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..groups, 0.0..most * 1.2)?;
    // A label in the middle of each group: the axis has a tick at every half.
    let name = |x: &f64| match report.rates.get(*x as usize) {
        Some(rate) if (x.fract() - 0.5).abs() < 0.01 => format!("node {}, {}", rate.node, rate.path),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_desc("GB/s")
        .x_labels(2 * report.rates.len() + 1)
        .x_label_formatter(&name)
        .draw()?;
    for (at, (label, color)) in SERIES.into_iter().enumerate() {
        let bar = |(group, rate): (usize, &Rate)| {
            let left = group as f64 + 0.14 + 0.24 * at as f64;
            Rectangle::new([(left, 0.0), (left + 0.22, bars(rate)[at])], color.filled())
        };
        chart
            .draw_series(report.rates.iter().enumerate().map(bar))?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], color.filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    drop(chart);
    root.present()?;
    Ok(())
}
