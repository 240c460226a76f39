//! The timeline of a plan's last simulated step: memory, tiers and streams over time.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use tensortier_model::{Machine, Nanos};

use crate::{
    graph::Graph,
    plan::{Plan, Step},
    sim::{Report, Span},
};

const SIZE: (u32, u32) = (1400, 800);
const DEVICE: RGBColor = RGBColor(31, 119, 180);
const TIERS: [RGBColor; 4] =
    [RGBColor(44, 160, 44), RGBColor(214, 39, 40), RGBColor(148, 103, 189), RGBColor(140, 86, 75)];
const GIB: f64 = (1u64 << 30) as f64;

/// (milliseconds since the step began, GiB)
type Curve = Vec<(f64, f64)>;

/// The chart as SVG.
pub(super) fn svg(graph: &Graph, machine: &Machine, plan: &Plan, spans: &[Span], report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, graph, machine, plan, spans, report)
        .map_err(|error| anyhow!("cannot draw the timeline: {error}"))?;
    Ok(text)
}

/// A page that holds the chart and nothing from elsewhere.
pub(super) fn html(title: &str, svg: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    format!("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n{svg}\n")
}

fn draw(
    text: &mut String,
    graph: &Graph,
    machine: &Machine,
    plan: &Plan,
    spans: &[Span],
    report: &Report,
) -> Result<(), Box<dyn std::error::Error>> {
    let last = spans.len().saturating_sub(plan.steps.len());
    let shown = &spans[last..];
    let runs = |span: &&Span| matches!(plan.steps[span.step], Step::Run(_));
    let begin = shown.iter().filter(runs).map(|s| s.start).min().unwrap_or(0);
    let end = begin + report.step_ns.max(1);
    let length = report.step_ns.max(1) as f64 / 1e6;
    let (device, tiers) = curves(graph, machine, plan, spans, begin, end);

    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("{}, {}: {length:.1} ms a step", graph.name, plan.planner);
    let root = root.titled(&title, ("sans-serif", 22))?;
    let (memory, streams) = root.split_vertically(520);

    let most = tiers.iter().chain([&device]).flatten().map(|&(_, y)| y).fold(machine.hbm as f64 / GIB, f64::max);
    let mut chart = ChartBuilder::on(&memory)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..length, 0.0..most * 1.05)?;
    chart.configure_mesh().x_desc("ms").y_desc("GiB").draw()?;
    chart
        .draw_series(AreaSeries::new(device, 0.0, DEVICE.mix(0.3)).border_style(DEVICE))?
        .label("GPU memory")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], DEVICE));
    let limit = machine.hbm as f64 / GIB;
    chart
        .draw_series(LineSeries::new([(0.0, limit), (length, limit)], BLACK))?
        .label("its limit")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK));
    for (at, curve) in tiers.into_iter().enumerate() {
        let color = TIERS[at % TIERS.len()];
        chart
            .draw_series(LineSeries::new(curve, color.stroke_width(2)))?
            .label(machine.tiers[at].profile.name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;

    let lanes = ["to GPU", "to host", "compute"];
    let mut chart = ChartBuilder::on(&streams)
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..length, 0.0..3.0)?;
    let lane = |y: &f64| lanes.get(*y as usize).map_or(String::new(), |name| (*name).to_owned());
    chart.configure_mesh().disable_mesh().x_desc("ms").y_labels(4).y_label_formatter(&lane).draw()?;
    chart.draw_series(
        boxes(plan, spans, machine, begin, end)
            .into_iter()
            .map(|(from, to, lane, color)| Rectangle::new([(from, lane + 0.1), (to, lane + 0.9)], color.filled())),
    )?;
    drop(chart);
    root.present()?;
    Ok(())
}

fn since(at: Nanos, begin: Nanos) -> f64 {
    at.saturating_sub(begin) as f64 / 1e6
}

/// Bytes on the device and in each tier within one step, from all changes up to its end.
fn curves(
    graph: &Graph,
    machine: &Machine,
    plan: &Plan,
    spans: &[Span],
    begin: Nanos,
    end: Nanos,
) -> (Curve, Vec<Curve>) {
    let bytes = |s: usize| graph.storages[s].bytes as i64;
    let mut device = vec![(0, plan.initial.iter().map(|&s| bytes(s)).sum::<i64>())];
    let mut tiers: Vec<Vec<(Nanos, i64)>> = vec![Vec::new(); machine.tiers.len()];
    let mut resident = vec![false; graph.storages.len()];
    let mut kept: Vec<Option<usize>> = vec![None; graph.storages.len()];
    plan.initial.iter().for_each(|&s| resident[s] = true);
    for &(s, tier) in &plan.home {
        kept[s] = Some(tier);
        tiers[tier].push((0, bytes(s)));
    }
    let mut iteration = 0;
    for span in spans {
        if span.iteration != iteration {
            iteration = span.iteration;
            for s in (0..kept.len()).filter(|&s| !graph.storages[s].kind.is_persistent()) {
                if let Some(tier) = kept[s].take() {
                    tiers[tier].push((span.start, -bytes(s)));
                }
            }
        }
        match plan.steps[span.step] {
            Step::Run(op) => {
                for &s in &graph.ops[op].writes {
                    if !std::mem::replace(&mut resident[s], true) {
                        device.push((span.start, bytes(s)));
                    }
                }
            }
            Step::CopyIn(s) => {
                resident[s] = true;
                device.push((span.start, bytes(s)));
            }
            Step::CopyOut { storage: s, tier } => {
                if kept[s] != Some(tier) {
                    if let Some(old) = kept[s].replace(tier) {
                        tiers[old].push((span.start, -bytes(s)));
                    }
                    tiers[tier].push((span.start, bytes(s)));
                }
            }
            Step::Drop(s) => {
                resident[s] = false;
                device.push((span.end, -bytes(s)));
            }
            Step::Fault(_) => {}
        }
    }
    (curve(device, begin, end), tiers.into_iter().map(|changes| curve(changes, begin, end)).collect())
}

/// At most a few thousand points: between two of them, the highest value.
fn curve(mut changes: Vec<(Nanos, i64)>, begin: Nanos, end: Nanos) -> Curve {
    const POINTS: u64 = 2000;
    changes.sort_unstable();
    let width = (end - begin).div_ceil(POINTS).max(1);
    let mut highest = vec![None::<i64>; POINTS as usize + 1];
    let (mut held, mut before) = (0, 0);
    for (at, by) in changes {
        held += by;
        if at < begin {
            before = held;
        } else if at <= end {
            let slot = &mut highest[((at - begin) / width) as usize];
            *slot = Some(slot.map_or(held, |high| high.max(held)));
            before = if at == begin { held } else { before };
        }
    }
    let mut now = before;
    let point = |(at, high): (usize, Option<i64>)| {
        now = high.unwrap_or(now);
        (since(begin + at as u64 * width, begin), now as f64 / GIB)
    };
    highest.into_iter().enumerate().map(point).filter(|&(x, _)| x <= since(end, begin)).collect()
}

/// What each stream does within the step; neighbours that are closer than a pixel are one.
fn boxes(plan: &Plan, spans: &[Span], machine: &Machine, begin: Nanos, end: Nanos) -> Vec<(f64, f64, f64, RGBColor)> {
    let pixel = (end - begin) / u64::from(SIZE.0);
    let mut boxes: Vec<(Nanos, Nanos, usize, RGBColor)> = Vec::new();
    let mut last: [Option<usize>; 3] = [None; 3];
    let mut tier = std::collections::HashMap::new();
    tier.extend(plan.home.iter().copied());
    for span in spans {
        let (lane, color) = match plan.steps[span.step] {
            Step::Run(_) => (2, DEVICE),
            Step::CopyOut { storage, tier: to } => {
                tier.insert(storage, to);
                (1, TIERS[to % TIERS.len()])
            }
            Step::CopyIn(s) => {
                (0, TIERS[tier.get(&s).copied().unwrap_or(0) % machine.tiers.len().clamp(1, TIERS.len())])
            }
            Step::Drop(_) | Step::Fault(_) => continue,
        };
        let (from, to) = (span.start.max(begin), span.end.min(end));
        if from >= to {
            continue;
        }
        match last[lane].map(|at| &mut boxes[at]) {
            Some(open) if open.3 == color && from <= open.1 + pixel => open.1 = to,
            _ => {
                last[lane] = Some(boxes.len());
                boxes.push((from, to, lane, color));
            }
        }
    }
    boxes
        .into_iter()
        .map(|(from, to, lane, color)| (since(from, begin), since(to, begin), lane as f64, color))
        .collect()
}
