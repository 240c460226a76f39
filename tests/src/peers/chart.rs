//! The plot: each system's share over time, a panel a workload.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{
    System, Workload,
    judge::{Cells, Seen},
};

const WIDTH: u32 = 1100;
const PANEL: u32 = 300;
const TITLE: u32 = 40;

fn color(system: System) -> RGBColor {
    match system {
        System::Nothing => RGBColor(127, 127, 127),
        System::Kernel => RGBColor(31, 119, 180),
        System::Damos => RGBColor(255, 127, 14),
        System::Agent => RGBColor(44, 160, 44),
    }
}

/// The plot of a kernel's cells as SVG.
///
/// # Errors
/// None in practice: it is drawn in memory.
pub fn svg(title: &str, cells: &Cells) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, title, cells).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(text)
}

fn draw(text: &mut String, title: &str, cells: &Cells) -> Result<(), Box<dyn std::error::Error>> {
    let there = |workload: &Workload| cells.keys().any(|(of, _)| of == workload);
    let workloads: Vec<Workload> = Workload::ALL.into_iter().filter(there).collect();
    let height = TITLE + PANEL * workloads.len().max(1) as u32;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(title, ("sans-serif", 20))?;
    for (workload, panel) in workloads.iter().zip(root.split_evenly((workloads.len().max(1), 1))) {
        let of = || cells.iter().filter(|((of, _), _)| of == workload);
        let length = of().map(|(_, seen)| seen.cell.seconds).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(&panel)
            .margin(10)
            .caption(workload.to_string(), ("sans-serif", 16))
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..length, 0.0..1.05)?;
        chart.configure_mesh().x_desc("s").y_desc("share on DRAM").draw()?;
        // The oracle depends on the accesses alone; the run without a system shows them best.
        if let Some((_, Seen { cell, .. })) = of().next() {
            let steps = cell.best.iter().flat_map(|&(from, to, share)| [(from, share), (to, share)]);
            chart
                .draw_series(LineSeries::new(steps, BLACK.stroke_width(1)))?
                .label("oracle")
                .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK));
        }
        for ((_, system), seen) in of() {
            let color = color(*system);
            chart
                .draw_series(LineSeries::new(seen.cell.curve.iter().copied(), color.stroke_width(2)))?
                .label(system.to_string())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    root.present()?;
    Ok(())
}
