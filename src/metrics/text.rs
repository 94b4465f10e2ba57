//! Prometheus' text format, version 0.0.4.

use super::histogram::Buckets;
use std::fmt::Write;

/// What a family of series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Any number.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A page of series in the making.
#[derive(Debug, Default)]
pub struct Text {
    page: String,
    name: &'static str,
    /// The family's head, until it has a series.
    head: String,
}

impl Text {
    /// Begins a family; the series that follow are of it. Without any it is left out.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
    }

    /// A series of the family. Label values are printed with their quotes and backslashes escaped.
    pub fn series(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, value);
    }

    /// A family of one series without labels.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help);
        self.series(&[], value);
    }

    /// The series of a histogram.
    pub fn histogram(&mut self, labels: &[(&str, &str)], buckets: &Buckets) {
        for (bound, count) in &buckets.cumulative {
            self.line("_bucket", labels, Some(*bound), *count as f64);
        }
        self.line("_bucket", labels, Some(f64::INFINITY), buckets.count as f64);
        self.line("_sum", labels, None, buckets.sum);
        self.line("_count", labels, None, buckets.count as f64);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<f64>, value: f64) {
        self.page.push_str(&std::mem::take(&mut self.head));
        self.page.push_str(self.name);
        self.page.push_str(suffix);
        let mut separator = '{';
        for (name, text) in labels {
            let text = text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let _ = write!(self.page, "{separator}{name}=\"{text}\"");
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(self.page, "{separator}le=\"{}\"", number(bound));
            separator = ',';
        }
        if separator == ',' {
            self.page.push('}');
        }
        let _ = writeln!(self.page, " {}", number(value));
    }

    /// The page.
    pub fn finish(self) -> String {
        self.page
    }
}

/// A number as Go prints it (`%g` with as many digits as are needed), since people compare pages as text.
fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_go_prints_them() {
        let table = [
            (0.0, "0"),
            (1.0, "1"),
            (-1.0, "-1"),
            (20480.0, "20480"),
            (999_999.0, "999999"),
            (2_147_483_648.0, "2.147483648e+09"),
            (30_822_400.0, "3.08224e+07"),
            (4_306_714_926.0, "4.306714926e+09"),
            (1e6, "1e+06"),
            (1e21, "1e+21"),
            (0.001, "0.001"),
            (0.0001, "0.0001"),
            (5.948e-6, "5.948e-06"),
            (8.192, "8.192"),
            (1234567.5, "1.2345675e+06"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, expected) in table {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn a_page_has_families_series_and_histograms() {
        let mut text = Text::default();
        text.single("a_total", Kind::Counter, "As.", 3.0);
        text.family("empty", Kind::Gauge, "None.");
        text.family("b", Kind::Gauge, "Bs.");
        text.series(&[("x", "1"), ("y", "q\"\\\n")], 0.5);
        text.family("c", Kind::Histogram, "Cs.");
        let buckets = Buckets {
            cumulative: vec![(0.5, 1), (1.0, 2)],
            count: 3,
            sum: 2.5,
        };
        text.histogram(&[("z", "w")], &buckets);
        text.histogram(&[], &buckets);
        let expected = "# HELP a_total As.\n# TYPE a_total counter\na_total 3\n\
            # HELP b Bs.\n# TYPE b gauge\nb{x=\"1\",y=\"q\\\"\\\\\\n\"} 0.5\n\
            # HELP c Cs.\n# TYPE c histogram\n\
            c_bucket{z=\"w\",le=\"0.5\"} 1\nc_bucket{z=\"w\",le=\"1\"} 2\nc_bucket{z=\"w\",le=\"+Inf\"} 3\n\
            c_sum{z=\"w\"} 2.5\nc_count{z=\"w\"} 3\n\
            c_bucket{le=\"0.5\"} 1\nc_bucket{le=\"1\"} 2\nc_bucket{le=\"+Inf\"} 3\nc_sum 2.5\nc_count 3\n";
        assert_eq!(text.finish(), expected);
    }
}
