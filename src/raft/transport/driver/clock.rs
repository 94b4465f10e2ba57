//! Moments as RFC 3339 writes them, which is how probes tell each other the time.

use crate::http::date::Civil;
use std::time::Duration;

/// A moment since 1970 as text: `2026-11-30T16:10:08.25Z`, in UTC, as Go writes it.
pub(super) fn format(since_epoch: Duration) -> String {
    let Civil {
        year,
        month,
        day,
        hour,
        minute,
        second,
        ..
    } = Civil::from_unix(since_epoch.as_secs());
    let fraction = match since_epoch.subsec_nanos() {
        0 => String::new(),
        nanos => format!(".{nanos:09}").trim_end_matches('0').to_string(),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The moment that such a text names, with any offset; `None` if it is none, or before 1970.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', 't'])?;
    let numbers = |text: &str, separator: char| -> Option<[u32; 3]> {
        let parts: Vec<u32> = text.split(separator).map_while(digits).collect();
        parts.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, offset) = time.split_at(at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let offset_minutes = match offset.as_bytes().first()? {
        b'Z' | b'z' => 0,
        sign => {
            let (hours, minutes) = offset[1..].split_once(':')?;
            let minutes = i64::from(digits(hours)?) * 60 + i64::from(digits(minutes)?);
            if *sign == b'-' { -minutes } else { minutes }
        }
    };
    let days = days_from_civil(i64::from(year), month, day);
    let seconds = days * 86_400 + i64::from(hour * 3600 + minute * 60 + second) - offset_minutes * 60;
    let fraction: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    Some(Duration::new(u64::try_from(seconds).ok()?, digits(&fraction)?))
}

fn digits(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

/// Days from 1970 to a date of the Gregorian calendar. Years begin in March here, so that the odd day is at the end.
fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * i64::from((month + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (1_796_055_008, 250_000_000, "2026-11-30T16:10:08.25Z"),
            (4_107_542_399, 1, "2100-02-28T23:59:59.000000001Z"),
        ] {
            let moment = Duration::new(seconds, nanos);
            assert_eq!(format(moment), text);
            assert_eq!(parse(text), Some(moment));
        }
        for day in (0..40_000).step_by(7) {
            let moment = Duration::from_secs(day * 86_400 + day);
            assert_eq!(parse(&format(moment)), Some(moment));
        }
    }

    #[test]
    fn offsets_are_taken_off() {
        let utc = parse("2026-11-30T16:10:08Z");
        assert!(utc.is_some());
        assert_eq!(parse("2026-11-30T18:40:08+02:30"), utc);
        assert_eq!(parse("2026-11-30T11:10:08-05:00"), utc);
    }

    #[test]
    fn other_texts_are_none() {
        for text in [
            "",
            "T",
            "2026-11-30",
            "2026-13-30T16:10:08Z",
            "2026-11-30T16:10:08",
            "2026-11-30T16:10Z",
            "1969-12-31T23:59:59Z",
            "a-b-cTd:e:fZ",
            "2026-11-30T16:10:08+2",
            "2026-11-30T16:10:08.xZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
