//! `grpc-timeout`: up to eight digits and a unit.

use std::time::Duration;

use super::status::quote;

/// Go's largest duration, to which hours beyond it are cut.
const LONGEST: Duration = Duration::from_nanos(i64::MAX as u64);

/// Reads a `grpc-timeout`. The error is grpc-go's text.
pub fn parse_timeout(value: &[u8]) -> Result<Duration, String> {
    if value.len() < 2 {
        return Err(format!("transport: timeout string is too short: {}", quote(value)));
    }
    if value.len() > 9 {
        return Err(format!("transport: timeout string is too long: {}", quote(value)));
    }
    let (digits, unit) = value.split_at(value.len() - 1);
    let nanoseconds: u64 = match unit[0] {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(format!("transport: timeout unit is not recognized: {}", quote(value))),
    };
    let mut number = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(format!("strconv.ParseUint: parsing {}: invalid syntax", quote(digits)));
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    // Eight digits of hours are the only ones that overflow.
    Ok(number
        .checked_mul(nanoseconds)
        .map_or(LONGEST, Duration::from_nanos)
        .min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_known() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("00000003S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
            ("0n", Duration::ZERO),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("99999999H", LONGEST),
            ("2562047H", Duration::from_secs(2_562_047 * 3600)),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_ones_are_refused_in_grpc_gos_words() {
        for (text, expected) in [
            ("", "transport: timeout string is too short: \"\""),
            ("S", "transport: timeout string is too short: \"S\""),
            ("123456789S", "transport: timeout string is too long: \"123456789S\""),
            ("1x", "transport: timeout unit is not recognized: \"1x\""),
            ("-1S", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()), Err(expected.to_string()), "{text}");
        }
    }
}
