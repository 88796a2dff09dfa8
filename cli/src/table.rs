//! Tables, and numbers as people read them.

/// Rows below a heading. The first column is to the left, and so is each whose heading ends in a colon.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<&str> = heads.iter().map(|head| head.trim_end_matches(':')).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([names[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().enumerate().map(|(at, cell)| {
            let width = widths[at];
            if at == 0 || heads[at].ends_with(':') { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [line(names.clone())].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// A number of things.
pub(crate) fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1_000 {
        return format!("{bytes} B");
    }
    let (mut scaled, mut unit) = (bytes as f64 / 1_000.0, 0);
    while scaled >= 999.95 && unit + 1 < UNITS.len() {
        (scaled, unit) = (scaled / 1_000.0, unit + 1);
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

pub(crate) fn duration(ms: u64) -> String {
    match ms / 1_000 {
        0 => format!("{ms} ms"),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// How long ago a time was, by the same clock.
pub(crate) fn age(now: u64, at: Option<u64>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| duration(now.saturating_sub(at)))
}
